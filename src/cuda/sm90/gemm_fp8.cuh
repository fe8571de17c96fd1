// The matrix products of a consumer warpgroup in fp8, like those of gemm.cuh. A step is 32 numbers
// of the summed dimension, along which both operands are contiguous: panels of 128 columns.
#pragma once

#include "cuda/ptx/wgmma_fp8.cuh"
#include "cuda/sm90/gemm.cuh"

namespace tilewise::cuda::sm90 {

inline constexpr int kFp8MmaK = 32;  // columns that one wgmma sums over
inline constexpr int kFp8PanelColumns = 128;

// d (64, kN) = A B^T, with A (64, kK) and B (kN, kK) in a panel each, at the shared addresses a and
// b.
template <bool kE5M2, int kN, int kK>
__device__ __forceinline__ void gemm_fp8_ss(std::uint32_t a, std::uint32_t b, float (&d)[kN / 2]) {
  static_assert(kK <= kFp8PanelColumns);
  const std::uint64_t a_rows = tile::rows_descriptor(a);
  const std::uint64_t b_rows = tile::rows_descriptor(b);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kK / kFp8MmaK; ++step) {
    const std::uint64_t offset = step * kFp8MmaK / tile::kChunkBytes;
    ptx::WgmmaFp8<kN>::template ss<kE5M2>(d, a_rows + offset, b_rows + offset, step > 0);
  }
}

// d (64, kN) = A B^T, with A (64, kK) of e4m3 in registers, 4 for a step, and B (kN, kK) in a panel
// at the shared address b.
template <bool kE5M2, int kN, int kK>
__device__ __forceinline__ void gemm_fp8_rs(const std::uint32_t (&a)[kK / 8], std::uint32_t b,
                                            float (&d)[kN / 2]) {
  static_assert(kK <= kFp8PanelColumns);
  const std::uint64_t b_rows = tile::rows_descriptor(b);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kK / kFp8MmaK; ++step) {
    const std::uint64_t offset = step * kFp8MmaK / tile::kChunkBytes;
    ptx::WgmmaFp8<kN>::template rs<kE5M2>(d, a + 4 * step, b_rows + offset, step > 0);
  }
}

}  // namespace tilewise::cuda::sm90
