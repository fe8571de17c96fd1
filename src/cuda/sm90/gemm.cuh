// The matrix products of a consumer warpgroup by wgmma: 64 rows, fp32 sums. Each function issues
// its products and returns before they are done; the caller commits them as a group (ptx/wgmma.cuh
// says what may be touched until that is waited for). Operands in shared memory lie in panels of 64
// columns (tile/swizzle.h).
#pragma once

#include "cuda/ptx/wgmma.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/swizzle.h"

namespace tilewise::cuda::sm90 {

inline constexpr int kMmaK = 16;  // columns that one wgmma sums over

// d (64, kN) = A B^T, with A (64, kK) and B (kN, kK) at the shared addresses a and b. kARows,
// kBRows: rows of the panels, 64 and kN at least.
template <bool kFp16, int kN, int kK, int kBRows, int kARows = tile::kRows>
__device__ __forceinline__ void gemm_ss(std::uint32_t a, std::uint32_t b, float (&d)[kN / 2]) {
  // A step moves a descriptor's address, which counts 16 bytes and never leaves its 14 bits.
  const std::uint64_t a_rows = tile::rows_descriptor(a);
  const std::uint64_t b_rows = tile::rows_descriptor(b);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kK / kMmaK; ++step) {
    const int panel = step * kMmaK / tile::kPanelColumns;
    const int byte = step * kMmaK % tile::kPanelColumns * 2;
    ptx::Wgmma<kN>::template ss<kFp16>(
        d, a_rows + (panel * kARows * tile::kPanelRowBytes + byte) / 16,
        b_rows + (panel * kBRows * tile::kPanelRowBytes + byte) / 16, step > 0);
  }
}

// d (64, 64) = A^T B, or d += A^T B to accumulate, with A (kK, 64) and B (kK, 64) in one panel
// each, at the shared addresses a and b.
template <bool kFp16, int kK>
__device__ __forceinline__ void gemm_tt(std::uint32_t a, std::uint32_t b, float (&d)[32],
                                        bool accumulate = false) {
  const std::uint64_t a_columns = tile::columns_descriptor(a, tile::kPanelRowBytes);
  const std::uint64_t b_columns = tile::columns_descriptor(b, tile::kPanelRowBytes);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kK / kMmaK; ++step) {
    const std::uint64_t offset = step * kMmaK * tile::kPanelRowBytes / 16;
    ptx::Wgmma<64>::tt<kFp16>(d, a_columns + offset, b_columns + offset, step > 0 || accumulate);
  }
}

// Steps [begin, end) of d (64, kN) += A B, 16 columns of A each: A (64, 16 steps) in registers,
// 4 for a step; B (16 steps, kN) by its descriptor (tile::columns_descriptor()). accumulate: d
// holds a sum already; else step 0 begins it. before_step(step) runs before each step.
template <bool kFp16, int kN, class BeforeStep>
__device__ __forceinline__ void gemm_rs(const std::uint32_t* a, std::uint64_t b, float (&d)[kN / 2],
                                        int begin, int end, bool accumulate,
                                        const BeforeStep& before_step) {
  ptx::wgmma_fence();
#pragma unroll
  for (int step = begin; step < end; ++step) {
    before_step(step);
    ptx::Wgmma<kN>::template rs<kFp16>(
        d, a + 4 * step, b + step * kMmaK * tile::kPanelRowBytes / 16, step > 0 || accumulate);
  }
}

}  // namespace tilewise::cuda::sm90
