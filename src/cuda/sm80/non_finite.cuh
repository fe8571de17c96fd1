// The non-finite pass on tiles of 16-bit elements in shared memory. A block that ends with a value
// that is not finite attends a second time: operands that are not finite count as zero, and the
// rows that see one are flagged for the recompute kernel (prepare.cu).
#pragma once

#include "cuda/sm80/shared.cuh"

namespace tilewise::cuda::sm80 {

// Infinity and NaN have all bits of the exponent set.
template <bool kFp16>
__device__ __forceinline__ bool is_non_finite(std::uint32_t bits) {
  constexpr std::uint32_t kExponent = kFp16 ? 0x7C00u : 0x7F80u;
  return (bits & kExponent) == kExponent;
}

// Replaces the non-finite elements of a loaded tile by zero, and flags their rows. All threads call
// it, between two barriers.
template <bool kFp16, int kRows, int kColumns, int kThreads>
__device__ void zero_non_finite(unsigned char* tile, std::uint8_t* non_finite /* (kRows) */) {
  using Layout = tile::LdmatrixTile<kColumns>;
#pragma unroll 1
  for (int chunk = threadIdx.x; chunk < kRows * Layout::kChunks; chunk += kThreads) {
    const int row = chunk / Layout::kChunks;
    std::uint32_t* const words =
        reinterpret_cast<std::uint32_t*>(tile + Layout::place(row, chunk % Layout::kChunks));
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const bool low = is_non_finite<kFp16>(words[i]);
      const bool high = is_non_finite<kFp16>(words[i] >> 16);
      if (low) words[i] &= 0xFFFF0000u;
      if (high) words[i] &= 0x0000FFFFu;
      if (low || high) non_finite[row] = 1;
    }
  }
}

}  // namespace tilewise::cuda::sm80
