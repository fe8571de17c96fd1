// Adds the contribution of non-finite elements of V to rows of out, as a product of markers. In a
// tile with masked keys, the product P V finds zeros in the place of such elements.
#pragma once

#include <cstdint>

#include "cuda/tile/non_finite.cuh"

namespace tilewise::cuda::tile {

// A bf16 of 2^100, whose square no fp32 can hold.
inline constexpr std::uint32_t kMarker = 0x7180u;

// Returns the markers of a pair of elements: for +infinity and NaN a positive one, or with
// kNegative, for -infinity and NaN a negative one; 0 for all other elements.
template <bool kFp16, bool kNegative>
__device__ __forceinline__ std::uint32_t markers_of(std::uint32_t pair) {
  constexpr std::uint32_t kSign = 0x8000u;
  const auto marker = [](std::uint32_t bits) -> std::uint32_t {
    const bool is_nan = (bits & ~kSign) > kExponentBits<kFp16>;
    const bool is_infinity = bits == (kExponentBits<kFp16> | (kNegative ? kSign : 0));
    return is_nan || is_infinity ? kMarker | (kNegative ? kSign : 0) : 0;
  };
  return marker(pair & 0xFFFFu) | marker(pair >> 16) << 16;
}

// Visible non-finite elements of V contribute M N and M (-N') to O. M is 2^100 for a visible key,
// else 0; N is 2^100 for +infinity and NaN, N' for -infinity and NaN. 2^200 overflows to infinity,
// and infinity - infinity is NaN.

// Fills in M, the operand for the 16 keys number `step` of a tile, from the keys that the lane's
// two rows see: bit n stands for the n-th of the lane's columns.
__device__ __forceinline__ void mark_visible(std::uint32_t row, std::uint32_t row_below, int step,
                                             std::uint32_t (&visible)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t pair = (i % 2 == 0 ? row : row_below) >> (4 * step + i / 2 * 2);
    visible[i] = (pair & 1 ? kMarker : 0) | (pair & 2 ? kMarker << 16 : 0);
  }
}

}  // namespace tilewise::cuda::tile
