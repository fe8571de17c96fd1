// The columns of a key tile that a lane's rows see, as bits: bit n of a row stands for the n-th
// column that the lane holds of the tile. The functions run on host and device.
#pragma once

#include "cuda/tile/bands.h"
#include "math/integer.h"

namespace tilewise::cuda::tile {

// Returns how many of a lane's columns lie before column x of a tile of 128 keys. The lane holds
// two of every 8 columns, from `lane_column` on (tile/fragment.h).
TILEWISE_INLINE std::int32_t columns_before(std::int32_t x, std::int32_t lane_column) {
  const auto y = static_cast<std::uint32_t>(math::max(math::min(x - lane_column, 128), 0));
  return static_cast<std::int32_t>(y / 8 * 2 + (y % 8 < 2 ? y % 8 : 2));
}

// Returns a number whose `count` lowest bits are set. count: 0 to 32.
TILEWISE_INLINE std::uint32_t low_bits(std::int32_t count) {
  return static_cast<std::uint32_t>((std::uint64_t{1} << count) - 1);
}

// The columns that a lane holds of a fragment, in the key tile that begins at key `column`.
// operator() returns how many of them lie before a key.
struct FragmentColumns {
  std::int32_t column;
  std::int32_t lane_column;

  // A range that contains all of them.
  TILEWISE_INLINE Range range() const { return {column, column + 128}; }
  TILEWISE_INLINE std::int32_t operator()(std::int32_t key) const {
    return columns_before(key - column, lane_column);
  }
};

// Adjacent columns: `count` keys from `first` on. operator() returns how many of them lie before a
// key.
struct AdjacentColumns {
  std::int32_t first;
  std::int32_t count;

  TILEWISE_INLINE Range range() const { return {first, first + count}; }
  TILEWISE_INLINE std::int32_t operator()(std::int32_t key) const {
    return key <= first ? 0 : math::min(key - first, count);
  }
};

// Returns the bits of the columns that `row` sees through the band. before(x) of the lane's columns
// lie before key x.
template <class Before>
TILEWISE_INLINE std::uint32_t visible_bits(const Band& band, std::int32_t row,
                                           const Before& before) {
  if (row < band.row_begin || row >= band.row_end) return 0;
  return low_bits(before(band.end(row))) & ~low_bits(before(band.begin(row)));
}

}  // namespace tilewise::cuda::tile
