// The random orthogonal matrix of incoherent processing (docs/semantics.md, "Quantisation"): where
// its blocks of columns begin and end, and what columns are multiplied by before the transform.
#pragma once

#include "math/philox.h"

namespace tilewise::math {

// The width of the block of columns that begins where `left` columns are left: the largest power of
// two within them.
TILEWISE_INLINE constexpr std::int64_t hadamard_block(std::int64_t left) {
  std::int64_t width = 1;
  while (2 * width <= left) width *= 2;
  return width;
}

// 1 / sqrt(n), correctly rounded, for a power of two.
TILEWISE_INLINE constexpr float reciprocal_root(std::int64_t n) {
  float root = 1;
  for (; n >= 4; n /= 4) root /= 2;
  return n == 2 ? root * 0x1.6a09e6p-1f : root;
}

// The signs of columns 128 `group` to 128 `group` + 127: a bit for each that is negative.
TILEWISE_INLINE Philox4 column_signs(std::int64_t group, std::uint64_t seed) {
  return philox_4x32_10({{static_cast<std::uint32_t>(group), 0, 0, 0}}, seed);
}

}  // namespace tilewise::math
