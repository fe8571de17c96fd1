// Elements of V that are not finite, as 16-bit numbers in shared memory and as what they add to a
// fragment of out.
#pragma once

#include <cstdint>

#include "cuda/tile/fragment.h"
#include "math/integer.h"
#include "math/softmax_state.h"

namespace tilewise::cuda::tile {

// Infinity and NaN have all bits of the exponent set.
template <bool kFp16>
inline constexpr std::uint32_t kExponentBits = kFp16 ? 0x7C00u : 0x7F80u;

template <bool kFp16>
__device__ __forceinline__ bool is_non_finite16(std::uint32_t bits) {
  return (bits & kExponentBits<kFp16>) == kExponentBits<kFp16>;
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

// What the elements of V that are not finite add to a lane's rows of out, as bits: infinity, minus
// infinity, or NaN, which is both. Bit c of a row stands for the c-th column that the lane holds.
template <int kOut>
struct NonFiniteSums {
  static constexpr int kColumns = kOut / kRowsPerLane;  // of a lane's row
  static constexpr int kWords = (kColumns + 31) / 32;
  std::uint32_t bits[2][kRowsPerLane][kWords] = {};  // plus and minus

  // Adds a row of V to the lane's rows that see it. values (columns): 4-byte aligned, an even
  // number.
  template <bool kFp16>
  __device__ __forceinline__ void add(const std::uint16_t* values, std::int32_t columns,
                                      const bool (&sees)[kRowsPerLane]) {
    values += lane_column(static_cast<int>(threadIdx.x) % 32);
    columns -= lane_column(static_cast<int>(threadIdx.x) % 32);
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
#pragma unroll 1
      for (int c = 0; c < math::min(kColumns - 32 * word, 32); c += 2) {
        const int column = (32 * word + c) * 4;
        if (column >= columns) break;
        const std::uint32_t pair = *reinterpret_cast<const std::uint32_t*>(values + column);
        add_pair<kFp16>(pair, word, c, sees);
      }
    }
  }

  __device__ __forceinline__ void apply(float (&out)[kOut]) const {
    const float infinity = math::Limits<float>::kInfinity;
#pragma unroll
    for (int r = 0; r < kOut; ++r) {
      const int c = r / 4 * 2 + r % 2;
      const int which = register_row(r);
      if ((bits[0][which][c / 32] >> c % 32 & 1) != 0) out[r] += infinity;
      if ((bits[1][which][c / 32] >> c % 32 & 1) != 0) out[r] -= infinity;
    }
  }

 private:
  template <bool kFp16>
  __device__ __forceinline__ void add_pair(std::uint32_t pair, int word, int c,
                                           const bool (&sees)[kRowsPerLane]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t x = half == 0 ? pair : pair >> 16;
      if (!is_non_finite16<kFp16>(x)) continue;
      const bool nan = (x & 0x7FFFu) != kExponentBits<kFp16>;
      const bool minus = (x & 0x8000u) != 0;
#pragma unroll
      for (int which = 0; which < kRowsPerLane; ++which) {
        if (!sees[which]) continue;
        if (nan || !minus) bits[0][which][word] |= 1u << (c + half);
        if (nan || minus) bits[1][which][word] |= 1u << (c + half);
      }
    }
  }
};

}  // namespace tilewise::cuda::tile
