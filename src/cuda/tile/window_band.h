// The mask of a tile: one interval of keys for each row (math/mask_rule.h), and whether a tile of
// keys needs looking at them.
#pragma once

#include "math/mask_rule.h"

namespace tilewise::cuda::tile {

// A band over one sequence of fewer than 2^29 rows and keys, in 32 bits.
struct WindowBand {
  std::int32_t key_end;
  std::int32_t lower_slope;
  std::int32_t lower_offset;
  std::int32_t upper_slope;
  std::int32_t upper_offset;

  TILEWISE_INLINE std::int32_t begin(std::int32_t row) const {
    const std::int32_t lower = lower_slope * row + lower_offset;
    return lower > 0 ? lower : 0;
  }
  TILEWISE_INLINE std::int32_t end(std::int32_t row) const {
    const std::int32_t upper = upper_slope * row + upper_offset;
    return upper < key_end ? upper : key_end;
  }

  // Every row of first .. last sees every key of [key_begin, key_end).
  TILEWISE_INLINE bool full(std::int32_t first, std::int32_t last, std::int32_t keys_begin,
                            std::int32_t keys_end) const {
    return begin(last) <= keys_begin && end(first) >= keys_end;
  }
};

// math::window_band() in 32 bits: the describer of a Hopper kernel has few registers, and each
// number of 64 bits takes two. tests/cuda compares the two. left, right: -1 or at most kMaxLength.
inline constexpr std::int32_t kMaxLength = (std::int32_t{1} << 29) - 1;

TILEWISE_INLINE WindowBand window_band(std::int32_t k_len, std::int32_t diagonal, std::int32_t left,
                                       std::int32_t right) {
  WindowBand edges = {k_len, 0, 0, 0, k_len};
  if (left >= 0) {
    edges.lower_slope = 1;
    edges.lower_offset = diagonal - left;
  }
  if (right >= 0) {
    edges.upper_slope = 1;
    edges.upper_offset = diagonal + right + 1;
  }
  return edges;
}

}  // namespace tilewise::cuda::tile
