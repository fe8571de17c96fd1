// Rows of a tensor as the left operand of the product that sums over them: packed columns.
#pragma once

#include "cpu/operand.h"

namespace tilewise::cpu::TILEWISE_TARGET {

template <class E>
struct PackedColumns {
  RowBlock rows;            // where they come from; at most kMostPackedRows
  const E* data;            // (blocks of columns, kPackedBlock), columns padded with zeros
  const std::uint8_t* odd;  // (rows), 1: not finite, and zeros here; nullptr: nobody has looked
};

// Operands of the packed columns of a tile.
template <class E>
TILEWISE_INLINE std::int64_t packed_size(std::int64_t width) {
  return whole_product_rows(width) / kProductRows * kPackedBlock<E>;
}

template <class T>
TILEWISE_INLINE bool row_is_finite(const T* row, std::int64_t width) {
  // x - x is 0 for a finite x, NaN else.
  Vec<T> difference(T(0));
  std::int64_t c = 0;
  for (; c + Vec<T>::kLanes <= width; c += Vec<T>::kLanes) {
    const Vec<T> x = Vec<T>::load(row + c);
    difference = difference + (x - x);
  }
  T sum = T(0);
  for (int lane = 0; lane < Vec<T>::kLanes; ++lane) sum += difference.v[lane];
  for (; c < width; ++c) sum += row[c] - row[c];
  return sum == T(0);
}

template <class T, class S>
TILEWISE_INLINE bool storage_is_finite(const S* row, std::int64_t width) {
  bool finite = true;
  for (std::int64_t c = 0; c < width; ++c)
    finite = finite && math::is_finite(math::load<T>(row[c]));
  return finite;
}

// One row, converted, times a factor: `to` is its place in the first block.
template <class T, class S>
TILEWISE_INLINE void pack_row(const S* from, std::int64_t width, T factor, T* to) {
  constexpr int kLanes = Vec<T>::kLanes;
  constexpr int kRun = kLanes < kProductRows ? kLanes : kProductRows;  // that stays together
  std::int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) {
    T numbers[kLanes];
    (load_converted<T>(from + c) * Vec<T>(factor)).store(numbers);
    for (int i = 0; i < kLanes; i += kRun) {
      T* const run = to + (c + i) / kProductRows * kPackedBlock<T> + (c + i) % kProductRows;
      __builtin_memcpy(run, numbers + i, kRun * sizeof(T));
    }
  }
  for (; c < whole_product_rows(width); ++c) {
    to[c / kProductRows * kPackedBlock<T> + c % kProductRows] =
        c < width ? math::load<T>(from[c]) * factor : T(0);
  }
}

// Packs `rows` times a factor into data (packed_size<T>(rows.width)). odd: nullptr, or (rows) to be
// filled.
template <class T>
PackedColumns<T> pack_scaled_columns(const RowBlock& rows, T factor, T* data, std::uint8_t* odd) {
  with_storage(rows.view->dtype, [&](auto storage) {
    using S = decltype(storage);
    const S* const base = static_cast<const S*>(rows.view->data) +
                          rows.view->offset(rows.batch, rows.head, rows.first);
    for (std::int64_t r = 0; r < rows.count; ++r) {
      T* const to = data + r * kProductRows;
      pack_row<T>(base + r * rows.view->row, rows.width, factor, to);
      if (odd == nullptr) continue;
      odd[r] = storage_is_finite<T>(base + r * rows.view->row, rows.width) ? 0 : 1;
      for (std::int64_t c = 0; odd[r] != 0 && c < rows.width; ++c)
        to[c / kProductRows * kPackedBlock<T> + c % kProductRows] = T(0);
    }
  });
  return {rows, data, odd};
}

template <class T>
PackedColumns<T> pack_columns(const RowBlock& rows, T* data, std::uint8_t* odd) {
  static_assert(Operand<T>::kNumbers == 1, "pairs have a form of their own");
  return pack_scaled_columns<T>(rows, T(1), data, odd);
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
