// The structured mask of a tile of queries: a list of bands (math/mask_rule.h) in 32 bits, of which
// causal, windows and whole sequences need one and a list of slices as many as touch the tile.
// Plain functions of host and device.
#pragma once

#include "math/integer.h"
#include "math/mask_rule.h"

namespace tilewise::cuda::tile {

inline constexpr std::int64_t kMaxRows = (std::int64_t{1} << 29) - 1;  // of a sequence

struct Band {
  std::int32_t row_begin;
  std::int32_t row_end;
  std::int32_t key_begin;
  std::int32_t key_end;
  std::int32_t lower_slope;
  std::int32_t lower_offset;
  std::int32_t upper_slope;
  std::int32_t upper_offset;
  std::int32_t head;  // -1: all

  TILEWISE_INLINE std::int32_t begin(std::int32_t row) const {
    const std::int32_t lower = lower_slope * row + lower_offset;
    return lower > key_begin ? lower : key_begin;
  }
  TILEWISE_INLINE std::int32_t end(std::int32_t row) const {
    const std::int32_t upper = upper_slope * row + upper_offset;
    return upper < key_end ? upper : key_end;
  }
};

// Coordinates below 2^29, offsets of a band below 2^30 (math::window_band, math::slice_band).
TILEWISE_INLINE Band narrow_band(const math::Band& band, std::int64_t head) {
  const auto cut = [](std::int64_t x) {
    constexpr std::int64_t kMost = std::int64_t{1} << 30;
    return static_cast<std::int32_t>(math::clamp(x, -kMost, kMost));
  };
  return {cut(band.row_begin),   cut(band.row_end),      cut(band.key_begin),
          cut(band.key_end),     cut(band.lower_slope),  cut(band.lower_offset),
          cut(band.upper_slope), cut(band.upper_offset), static_cast<std::int32_t>(head)};
}

struct Range {
  std::int32_t begin;
  std::int32_t end;
};

// Keys that some row of first .. last sees through the band; empty if end <= begin.
TILEWISE_INLINE Range keys_of(const Band& band, std::int32_t first, std::int32_t last) {
  const std::int32_t from = math::max(first, band.row_begin);
  const std::int32_t to = math::min(last, band.row_end - 1);
  if (from > to) return {0, 0};
  return {band.begin(from), band.end(to)};
}

enum TileClass : std::int32_t { kEmpty = 0, kPartial = 1, kFull = 2 };

// What the band makes of rows first .. last and keys [keys_begin, keys_end). A full tile counts as
// one although its last keys lie behind the sequence's end only if the band says so.
TILEWISE_INLINE TileClass classify(const Band& band, std::int32_t first, std::int32_t last,
                                   std::int32_t keys_begin, std::int32_t keys_end) {
  const Range keys = keys_of(band, first, last);
  if (keys.end <= keys.begin || keys.end <= keys_begin || keys.begin >= keys_end) return kEmpty;
  const bool all_rows = band.row_begin <= first && band.row_end > last;
  return all_rows && band.begin(last) <= keys_begin && band.end(first) >= keys_end ? kFull
                                                                                   : kPartial;
}

// Of the columns that a lane has of a row of 128 keys (tile/fragment.h: two of every 8, from
// `lane_column` on), how many lie before column x. Bit n of a row's visibility stands for the
// lane's n-th column.
TILEWISE_INLINE std::int32_t columns_before(std::int32_t x, std::int32_t lane_column) {
  const auto y = static_cast<std::uint32_t>(math::max(math::min(x - lane_column, 128), 0));
  return static_cast<std::int32_t>(y / 8 * 2 + (y % 8 < 2 ? y % 8 : 2));
}
// count: at most 32.
TILEWISE_INLINE std::uint32_t low_bits(std::int32_t count) {
  return static_cast<std::uint32_t>((std::uint64_t{1} << count) - 1);
}
// The columns of a fragment's lane, in the tile of keys that begins at key `column`.
struct FragmentColumns {
  std::int32_t column;
  std::int32_t lane_column;

  TILEWISE_INLINE std::int32_t operator()(std::int32_t key) const {
    return columns_before(key - column, lane_column);
  }
};

// Columns that follow each other: `count` keys from `first` on.
struct AdjacentColumns {
  std::int32_t first;
  std::int32_t count;

  TILEWISE_INLINE std::int32_t operator()(std::int32_t key) const {
    return key <= first ? 0 : math::min(key - first, count);
  }
};

// Visibility of `row` through the band: a bit for each column of the lane, of which before(x) lie
// before key x.
template <class Before>
TILEWISE_INLINE std::uint32_t visible_bits(const Band& band, std::int32_t row,
                                           const Before& before) {
  if (row < band.row_begin || row >= band.row_end) return 0;
  return low_bits(before(band.end(row))) & ~low_bits(before(band.begin(row)));
}

}  // namespace tilewise::cuda::tile
