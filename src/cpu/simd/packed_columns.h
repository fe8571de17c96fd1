// Packed columns: rows of a tensor as the left operand of the product that sums over the rows (V,
// and in backward Q and dO).
#pragma once

#include "cpu/simd/finite.h"
#include "cpu/simd/magnitude.h"
#include "cpu/simd/packing.h"

namespace tilewise::cpu::TILEWISE_TARGET {

template <class E>
struct PackedColumns {
  RowBlock rows;     // the source; at most kMostPackedRows
  const E* data;     // (blocks of columns, kPackedBlock); columns are padded with zeros
  SumOf<E> largest;  // |x| of the source; NaN or infinity if one is not finite

  TILEWISE_INLINE bool all_finite() const { return math::is_finite(largest); }
};

// Operands that the packed columns of a tile take.
template <class E>
TILEWISE_INLINE std::int64_t packed_size(std::int64_t width) {
  return math::round_up(width, kGemmRows) / kGemmRows * kPackedBlock<E>;
}

// Packs one row, converted and multiplied by a factor. `to` is the position of the row in the first
// block.
template <class T, class S>
TILEWISE_INLINE void pack_row(const S* from, std::int64_t width, T factor, T* to,
                              Largest<T>& largest) {
  constexpr int kLanes = Vec<T>::kLanes;
  constexpr int kRun = kLanes < kGemmRows ? kLanes : kGemmRows;  // numbers that stay contiguous
  std::int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) {
    T numbers[kLanes];
    const Vec<T> loaded = load_converted<T>(from + c);
    largest.add(loaded);
    multiply_exactly(loaded, factor).store(numbers);
    for (int i = 0; i < kLanes; i += kRun) {
      T* const run = to + (c + i) / kGemmRows * kPackedBlock<T> + (c + i) % kGemmRows;
      __builtin_memcpy(run, numbers + i, kRun * sizeof(T));
    }
  }
  for (; c < math::round_up(width, kGemmRows); ++c) {
    const T number = c < width ? math::load<T>(from[c]) : T(0);
    largest.add(Vec<T>(number));
    to[c / kGemmRows * kPackedBlock<T> + c % kGemmRows] = number * factor;
  }
}

// Packs `rows`, multiplied by a factor, into data (packed_size<T>(rows.width)).
template <class T>
PackedColumns<T> pack_columns(const RowBlock& rows, T factor, T* data) {
  static_assert(Operand<T>::kNumbers == 1, "pairs have a form of their own");
  Largest<T> largest;
  with_storage(rows.view->dtype, [&](auto storage) {
    using S = decltype(storage);
    const RowAddresses<S> address(rows);
    for (std::int64_t r = 0; r < rows.count; ++r)
      pack_row<T>(address[r], rows.width, factor, data + r * kGemmRows, largest);
  });
  return {rows, data, largest.value()};
}

// The result of a product, in place, as the operand of the next product. Pairs of bf16 have their
// own version (packing_bf16.h).
template <class T, int kColumns, int kWidth>
TILEWISE_INLINE const T* as_operands(std::int64_t, T* tile) {
  static_assert(Operand<T>::kNumbers == 1, "pairs have a form of their own");
  return tile;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
