// The functions that make P and dS of a thread's part of S^T or dP^T, 64 keys by q_tile queries,
// and round them to 16 bits.
//
// SharedMemory has statistics[stage][2][q_tile] and non_finite_key[], whose rows are those of the
// block. kScores: registers of S^T (64, q_tile).
#pragma once

#include "cuda/ptx/arithmetic.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/mask_bits.h"

namespace tilewise::cuda::backward::sm90 {

// P = exp(S - LSE), at most 1: at large scores the rounding of LSE would make it infinite. NaN
// stays NaN.
__device__ __forceinline__ float prob(float score, float scale_log2, float lse_log2) {
  return ptx::exp2_approx(ptx::min_nan(__fmaf_rn(score, scale_log2, -lse_log2), 0));
}

// A row statistic of two neighbouring queries of the lane, those of registers 4 i to 4 i + 3.
template <class SharedMemory>
__device__ __forceinline__ float2 statistics(const SharedMemory& shared, int stage, int which,
                                             int i) {
  const int column = tile::lane_column(static_cast<int>(threadIdx.x % 32));
  return *reinterpret_cast<const float2*>(&shared.statistics[stage][which][8 * i + column]);
}

// S becomes P.
template <class SharedMemory, int kScores>
__device__ __forceinline__ void compute_probs(const SharedMemory& shared, float scale_log2,
                                              int stage, float (&scores)[kScores]) {
#pragma unroll
  for (int i = 0; i < kScores / 4; ++i) {
    const float2 lse = statistics(shared, stage, 0, i);
#pragma unroll
    for (int r = 4 * i; r < 4 * i + 4; ++r)
      scores[r] = prob(scores[r], scale_log2, r % 2 == 0 ? lse.x : lse.y);
  }
}

// dP becomes dS = differentiate(r, P (dP - delta)) in each register r, with P in 16 bits, as dV has
// it. differentiate() multiplies by the derivative of the score mod.
template <bool kFp16, class SharedMemory, int kScores, class Differentiate>
__device__ __forceinline__ void compute_gradients(const SharedMemory& shared, int stage,
                                                  const std::uint32_t (&probs)[kScores / 2],
                                                  float (&dprobs)[kScores],
                                                  const Differentiate& differentiate) {
#pragma unroll
  for (int i = 0; i < kScores / 4; ++i) {
    const float2 delta = statistics(shared, stage, 1, i);
#pragma unroll
    for (int r = 4 * i; r < 4 * i + 4; ++r) {
      const float p = ptx::unpack<kFp16>(probs[r / 2], r % 2);
      dprobs[r] = differentiate(r, p * (dprobs[r] - (r % 2 == 0 ? delta.x : delta.y)));
    }
  }
}

// Rounds P or dS to 16 bits.
template <bool kFp16, int kScores>
__device__ __forceinline__ void pack_scores(const float (&from)[kScores],
                                            std::uint32_t (&to)[kScores / 2]) {
#pragma unroll
  for (int i = 0; i < kScores / 2; ++i) to[i] = ptx::pack<kFp16>(from[2 * i], from[2 * i + 1]);
}

// P or dS of the pairs that are not visible becomes 0, whatever it was.
template <int kPairs>
__device__ __forceinline__ void keep_visible(const std::uint32_t (&visible)[tile::kRowsPerLane],
                                             std::uint32_t (&to)[kPairs]) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    // The two lowest bits belong to registers 2 i and 2 i + 1.
    const std::uint32_t bits = visible[i % 2] >> i / 2 * 2;
    to[i] &= ((bits & 1) != 0 ? 0xFFFFu : 0) | ((bits & 2) != 0 ? 0xFFFF0000u : 0);
  }
}

// A key with an element that is not finite has only scores that are not finite either: a row that
// sees it has an LSE of NaN, and in all other rows its score is -inf, which is masked.
//   first_row: of the warpgroup's 64 keys in the block
template <int kScores, class SharedMemory>
__device__ void hide_non_finite_keys(const SharedMemory& shared, int stage, int first_row,
                                     std::uint32_t (&visible)[tile::kRowsPerLane]) {
  std::uint32_t nan_rows = 0;
#pragma unroll 1
  for (int i = 0; i < kScores / 4; ++i) {
    const float2 lse = statistics(shared, stage, 0, i);
    if (lse.x != lse.x) nan_rows |= 1u << 2 * i;
    if (lse.y != lse.y) nan_rows |= 2u << 2 * i;
  }
  const int row = first_row + static_cast<int>(threadIdx.x % 128 / 32) * tile::kWarpRows +
                  tile::lane_row(static_cast<int>(threadIdx.x % 32), 0);
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which) {
    if (shared.non_finite_key[row + 8 * which] != 0) visible[which] &= nan_rows;
  }
}

}  // namespace tilewise::cuda::backward::sm90
