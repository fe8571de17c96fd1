// The structured mask of a query tile: a list of bands (math/mask_rule.h) in 32 bits. A causal
// mask, a window and a whole sequence are one band; a list of slices gives as many as touch the
// tile. Plain functions of host and device.
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

// Returns the band in 32 bits. Its coordinates must be below 2^29 and its offsets below 2^30
// (math::window_band, math::slice_band).
TILEWISE_INLINE Band narrow_band(const math::Band& band, std::int64_t head) {
  const auto narrow = [](std::int64_t x) {
    constexpr std::int64_t kLimit = std::int64_t{1} << 30;
    return static_cast<std::int32_t>(math::clamp(x, -kLimit, kLimit));
  };
  return {narrow(band.row_begin),   narrow(band.row_end),      narrow(band.key_begin),
          narrow(band.key_end),     narrow(band.lower_slope),  narrow(band.lower_offset),
          narrow(band.upper_slope), narrow(band.upper_offset), static_cast<std::int32_t>(head)};
}

struct Range {
  std::int32_t begin;
  std::int32_t end;
};

// Returns the keys that some row of first .. last sees through the band; empty if end <= begin.
TILEWISE_INLINE Range keys_of(const Band& band, std::int32_t first, std::int32_t last) {
  const std::int32_t from = math::max(first, band.row_begin);
  const std::int32_t to = math::min(last, band.row_end - 1);
  if (from > to) return {0, 0};
  return {band.begin(from), band.end(to)};
}

enum TileClass : std::int32_t { kEmpty = 0, kPartial = 1, kFull = 2 };

// Says whether the band leaves the tile of rows first .. last and keys [keys_begin, keys_end)
// empty, full or partial. A key tile that reaches beyond band.key_end is partial.
TILEWISE_INLINE TileClass classify(const Band& band, std::int32_t first, std::int32_t last,
                                   std::int32_t keys_begin, std::int32_t keys_end) {
  const Range keys = keys_of(band, first, last);
  if (keys.end <= keys.begin || keys.end <= keys_begin || keys.begin >= keys_end) return kEmpty;
  const bool all_rows = band.row_begin <= first && band.row_end > last;
  return all_rows && band.begin(last) <= keys_begin && band.end(first) >= keys_end ? kFull
                                                                                   : kPartial;
}

}  // namespace tilewise::cuda::tile
