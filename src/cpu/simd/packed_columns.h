// Rows of a tensor as the left operand of the product that sums over them: packed columns.
#pragma once

#include "cpu/simd/finite.h"
#include "cpu/simd/packing.h"

namespace tilewise::cpu::TILEWISE_TARGET {

template <class E>
struct PackedColumns {
  RowBlock rows;  // where they come from; at most kMostPackedRows
  const E* data;  // (blocks of columns, kPackedBlock), columns padded with zeros
  const std::uint8_t*
      non_finite;  // (rows), 1: not finite, and zeros here; nullptr: nobody has looked
};

// Operands of the packed columns of a tile.
template <class E>
TILEWISE_INLINE std::int64_t packed_size(std::int64_t width) {
  return math::round_up(width, kGemmRows) / kGemmRows * kPackedBlock<E>;
}

// One row, converted, times a factor: `to` is its place in the first block.
template <class T, class S>
TILEWISE_INLINE void pack_row(const S* from, std::int64_t width, T factor, T* to) {
  constexpr int kLanes = Vec<T>::kLanes;
  constexpr int kRun = kLanes < kGemmRows ? kLanes : kGemmRows;  // that stays together
  std::int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) {
    T numbers[kLanes];
    (load_converted<T>(from + c) * Vec<T>(factor)).store(numbers);
    for (int i = 0; i < kLanes; i += kRun) {
      T* const run = to + (c + i) / kGemmRows * kPackedBlock<T> + (c + i) % kGemmRows;
      __builtin_memcpy(run, numbers + i, kRun * sizeof(T));
    }
  }
  for (; c < math::round_up(width, kGemmRows); ++c) {
    to[c / kGemmRows * kPackedBlock<T> + c % kGemmRows] =
        c < width ? math::load<T>(from[c]) * factor : T(0);
  }
}

// Packs `rows` times a factor into data (packed_size<T>(rows.width)). odd: nullptr, or (rows) to be
// filled.
template <class T>
PackedColumns<T> pack_scaled_columns(const RowBlock& rows, T factor, T* data,
                                     std::uint8_t* non_finite) {
  with_storage(rows.view->dtype, [&](auto storage) {
    using S = decltype(storage);
    const S* const base = static_cast<const S*>(rows.view->data) +
                          rows.view->offset(rows.batch, rows.head, rows.first);
    for (std::int64_t r = 0; r < rows.count; ++r) {
      T* const to = data + r * kGemmRows;
      pack_row<T>(base + r * rows.view->row, rows.width, factor, to);
      if (non_finite == nullptr) continue;
      non_finite[r] = storage_is_finite<T>(base + r * rows.view->row, rows.width) ? 0 : 1;
      for (std::int64_t c = 0; non_finite[r] != 0 && c < rows.width; ++c)
        to[c / kGemmRows * kPackedBlock<T> + c % kGemmRows] = T(0);
    }
  });
  return {rows, data, non_finite};
}

template <class T>
PackedColumns<T> pack_columns(const RowBlock& rows, T* data, std::uint8_t* non_finite) {
  static_assert(Operand<T>::kNumbers == 1, "pairs have a form of their own");
  return pack_scaled_columns<T>(rows, T(1), data, non_finite);
}

// What a product wrote, as the operand of the next one, in place; and its row t as numbers. Pairs
// have forms of their own (dot_operand.h).
template <class T, int kColumns, int kWidth>
TILEWISE_INLINE const T* as_operands(std::int64_t, T* tile) {
  static_assert(Operand<T>::kNumbers == 1, "pairs have a form of their own");
  return tile;
}
template <class T, int kWidth>
TILEWISE_INLINE const T* operand_row(const T* operands, std::int64_t t, T*) {
  return operands + t * kWidth;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
