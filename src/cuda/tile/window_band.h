// The band of causal mask and window over one whole sequence, in five registers.
#pragma once

#include "math/mask_rule.h"

namespace tilewise::cuda::tile {

// The compressed form of a band (math/mask_rule.h) over a whole sequence of fewer than 2^29 rows
// and keys. Rows and keys begin at 0 and all rows belong to it, so that row_begin, row_end and
// key_begin are not stored.
struct WindowBand {
  std::int32_t key_end;
  std::int32_t lower_slope;
  std::int32_t lower_offset;
  std::int32_t upper_slope;
  std::int32_t upper_offset;

  // `row` sees the keys [begin(row), end(row)), which are none if end(row) <= begin(row).
  TILEWISE_INLINE std::int32_t begin(std::int32_t row) const {
    const std::int32_t lower = lower_slope * row + lower_offset;
    return lower > 0 ? lower : 0;
  }
  TILEWISE_INLINE std::int32_t end(std::int32_t row) const {
    const std::int32_t upper = upper_slope * row + upper_offset;
    return upper < key_end ? upper : key_end;
  }

  // Says whether every row of first .. last sees every key of [keys_begin, keys_end).
  TILEWISE_INLINE bool full(std::int32_t first, std::int32_t last, std::int32_t keys_begin,
                            std::int32_t keys_end) const {
    return begin(last) <= keys_begin && end(first) >= keys_end;
  }
};

inline constexpr std::int32_t kMaxLength = (std::int32_t{1} << 29) - 1;

// Returns what math::window_band() returns, compressed. left, right: -1 (unbounded) or at most
// kMaxLength. All is computed in 32 bits: the scheduler warp of a Hopper kernel has few registers,
// and a 64-bit number takes two. tests/cuda compares the two functions.
TILEWISE_INLINE WindowBand window_band(std::int32_t k_len, std::int32_t diagonal, std::int32_t left,
                                       std::int32_t right) {
  WindowBand band = {k_len, 0, 0, 0, k_len};
  if (left >= 0) {
    band.lower_slope = 1;
    band.lower_offset = diagonal - left;
  }
  if (right >= 0) {
    band.upper_slope = 1;
    band.upper_offset = diagonal + right + 1;
  }
  return band;
}

}  // namespace tilewise::cuda::tile
