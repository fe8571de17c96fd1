// Elements that are not finite, most of them as 16-bit numbers.
#pragma once

#include <cstdint>

#include "math/config.h"

namespace tilewise::cuda::tile {

__device__ __forceinline__ bool is_non_finite(float x) { return !(x - x == 0); }

// Infinity and NaN have all bits of the exponent set.
template <bool kFp16>
inline constexpr std::uint32_t kExponentBits = kFp16 ? 0x7C00u : 0x7F80u;

template <bool kFp16>
__device__ __forceinline__ bool is_non_finite16(std::uint32_t bits) {
  return (bits & kExponentBits<kFp16>) == kExponentBits<kFp16>;
}

// Bit 15 of each half says whether that number of a pair is not finite.
template <bool kFp16>
__device__ __forceinline__ std::uint32_t non_finite_halves(std::uint32_t pair) {
  constexpr std::uint32_t kCarry = 0x8000u - kExponentBits<kFp16>;
  return (pair & 0x7FFF7FFFu) + (kCarry | kCarry << 16);
}
// The same for a bf16 that is finite, and 2^50 or more. Such values may overflow an unnormalised
// sum, whose probs may grow to 2^60.
__device__ __forceinline__ std::uint32_t large_halves(std::uint32_t pair) {
  constexpr std::uint32_t kCarry = 0x8000u - ((127u + 50u) << 7);
  return ((pair & 0x7FFF7FFFu) + (kCarry | kCarry << 16)) & ~non_finite_halves<false>(pair);
}
inline constexpr std::uint32_t kHalvesFound = 0x80008000u;

template <bool kFp16>
__device__ __forceinline__ bool has_infinity(const uint4& chunk) {
  const auto is_infinite = [](std::uint32_t bits) {
    return (bits & 0x7FFFu) == kExponentBits<kFp16>;
  };
  bool found = false;
  for (const std::uint32_t pair : {chunk.x, chunk.y, chunk.z, chunk.w})
    found |= is_infinite(pair) || is_infinite(pair >> 16);
  return found;
}

// Replaces the elements of a chunk that are not finite by zero; says whether there was one.
template <bool kFp16>
__device__ __forceinline__ bool zero_non_finite(uint4& chunk) {
  bool found = false;
  const auto zero = [&](std::uint32_t& pair) {
    if (is_non_finite16<kFp16>(pair)) {
      pair &= 0xFFFF0000u;
      found = true;
    }
    if (is_non_finite16<kFp16>(pair >> 16)) {
      pair &= 0x0000FFFFu;
      found = true;
    }
  };
  zero(chunk.x);
  zero(chunk.y);
  zero(chunk.z);
  zero(chunk.w);
  return found;
}

}  // namespace tilewise::cuda::tile
