// The pages of a paged cache, in the form in which kernels look them up.
#pragma once

#include "cuda/tile/fast_divmod.h"
#include "problem/problem.h"

namespace tilewise::cuda::tile {

// The fields are those of problem::PageTable. Keys fit 32 bits.
struct Pages {
  const std::int32_t* table = nullptr;  // (B, pages); nullptr: the cache has no pages
  std::int64_t batch = 0;               // strides
  std::int64_t column = 0;              //
  std::int32_t last = 0;                // page of k and v
  FastDivmod size;
  std::int32_t row_bits = 0;  // of the number of a row in its page

  TILEWISE_INLINE bool present() const { return table != nullptr; }

  // A key's page and its row there, in one number, if pages_fit_places().
  TILEWISE_INLINE std::uint32_t place(std::int64_t b, std::int32_t key) const {
    const std::int32_t number = key / size;
    const std::int32_t page = math::clamp(table[b * batch + number * column], 0, last);
    return static_cast<std::uint32_t>(page) << row_bits |
           static_cast<std::uint32_t>(key - number * size.value());
  }
  // The offset of the row of a place from row 0 of page 0 in `view`, which is k or v.
  TILEWISE_INLINE std::int64_t offset(const problem::View& view, std::uint32_t place) const {
    return (place >> row_bits) * view.batch + (place & ((1u << row_bits) - 1)) * view.row;
  }

  // The offset of a key's row, for any number of pages.
  TILEWISE_INLINE std::int64_t offset(const problem::View& view, std::int64_t b,
                                      std::int32_t key) const {
    const std::int32_t number = key / size;
    const std::int32_t page = math::clamp(table[b * batch + number * column], 0, last);
    return page * view.batch + (key - number * size.value()) * view.row;
  }
};

// Host only.
inline std::int32_t row_bits_of(std::int64_t page_size) {
  std::int32_t bits = 0;
  while (std::int64_t{1} << bits < page_size) ++bits;
  return bits;
}
inline bool pages_fit_places(const problem::PageTable& from) {
  constexpr int kBits = 32;
  const std::int32_t bits = row_bits_of(from.page_size);
  return bits < kBits && (from.pages - 1) >> (kBits - bits) == 0;
}
inline Pages pages_of(const problem::Problem& problem) {
  const problem::PageTable& from = problem.page_table;
  if (!from.present() || problem.k_rows == 0) return {};
  return {from.data,
          from.batch,
          from.column,
          static_cast<std::int32_t>(math::min(from.pages - 1, INT32_MAX)),
          FastDivmod(static_cast<std::int32_t>(from.page_size)),
          row_bits_of(from.page_size)};
}

}  // namespace tilewise::cuda::tile
