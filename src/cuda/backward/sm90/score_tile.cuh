// What a thread does with its part of S^T or dP^T, 64 keys by q_tile queries: P and dS from them,
// masked and rounded to 16 bits, and their way to shared memory.
#pragma once

#include "cuda/backward/query_mask.cuh"
#include "cuda/backward/sm90/parameters.h"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/arithmetic.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/mask_bits.h"
#include "cuda/tile/swizzle.h"

namespace tilewise::cuda::backward::sm90 {

// SharedMemory has statistics[stage][2][kQTile], tile, mask, non_finite_keys and non_finite_key[],
// whose rows are those of the block.
template <bool kFp16, int kQTile, int kKTile, class SharedMemory>
class ScoreTile {
 public:
  // first_row: of the warpgroup's 64 keys in the block; first_key: the same in the sequence.
  __device__ __forceinline__ ScoreTile(const Parameters& parameters, SharedMemory& shared,
                                       int first_row, std::int32_t first_key)
      : parameters_(parameters),
        shared_(shared),
        mask_(parameters, shared.tile, shared.mask),
        first_row_(first_row),
        first_key_(first_key) {}

 protected:
  using Mask = QueryMask<kQTile, kKTile>;
  static constexpr int kScores = kQTile / 2;  // registers of S^T (64, q_tile)

  // P = exp(S - LSE), at most 1: at large scores the rounding of LSE would make it infinite. NaN
  // stays NaN.
  __device__ __forceinline__ float prob(float score, float lse_log2) const {
    return ptx::exp2_approx(ptx::min_nan(__fmaf_rn(score, parameters_.scale_log2, -lse_log2), 0));
  }

  // A row statistic of two neighbouring queries of the lane, those of registers 4 i to 4 i + 3.
  __device__ __forceinline__ float2 statistics(int stage, int which, int i) const {
    const int column = tile::lane_column(static_cast<int>(threadIdx.x % 32));
    return *reinterpret_cast<const float2*>(&shared_.statistics[stage][which][8 * i + column]);
  }

  // S becomes P.
  __device__ __forceinline__ void compute_probs(int stage, float (&scores)[kScores]) const {
#pragma unroll
    for (int i = 0; i < kScores / 4; ++i) {
      const float2 lse = statistics(stage, 0, i);
#pragma unroll
      for (int r = 4 * i; r < 4 * i + 4; ++r)
        scores[r] = prob(scores[r], r % 2 == 0 ? lse.x : lse.y);
    }
  }

  // dP becomes dS = P (dP - delta), with P in 16 bits, as dV has it.
  __device__ __forceinline__ void compute_gradients(int stage,
                                                    const std::uint32_t (&probs)[kScores / 2],
                                                    float (&dprobs)[kScores]) const {
#pragma unroll
    for (int i = 0; i < kScores / 4; ++i) {
      const float2 delta = statistics(stage, 1, i);
#pragma unroll
      for (int r = 4 * i; r < 4 * i + 4; ++r) {
        const float p = ptx::unpack<kFp16>(probs[r / 2], r % 2);
        dprobs[r] = p * (dprobs[r] - (r % 2 == 0 ? delta.x : delta.y));
      }
    }
  }

  // Rounds P or dS to 16 bits. That of masked pairs becomes 0, whatever it was.
  __device__ __forceinline__ void pack_visible(std::int32_t q_tile, int stage, bool masked,
                                               const float (&from)[kScores],
                                               std::uint32_t (&to)[kScores / 2]) const {
    pack(from, to);
    if (masked) hide_masked(q_tile, stage, {}, to);
  }

  __device__ __forceinline__ static void pack(const float (&from)[kScores],
                                              std::uint32_t (&to)[kScores / 2]) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) to[i] = ptx::pack<kFp16>(from[2 * i], from[2 * i + 1]);
  }

  // hidden: bits of other pairs that are masked.
  __device__ __forceinline__ void hide_masked(std::int32_t q_tile, int stage,
                                              const std::uint32_t (&hidden)[tile::kRowsPerLane],
                                              std::uint32_t (&to)[kScores / 2]) const {
    const int lane = static_cast<int>(ptx::opaque(threadIdx.x) % 32);
    std::uint32_t visible[tile::kRowsPerLane];
    mask_.query_bits(first_key_ + warp_row() + tile::lane_row(lane, 0), 8,
                     tile::FragmentColumns{q_tile * kQTile, tile::lane_column(lane)}, visible);
    if (shared_.non_finite_keys != 0) hide_non_finite_keys(stage, visible);
    visible[0] &= ~hidden[0];
    visible[1] &= ~hidden[1];
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      // The two lowest bits belong to registers 2 i and 2 i + 1.
      const std::uint32_t bits = visible[i % 2] >> i / 2 * 2;
      to[i] &= ((bits & 1) != 0 ? 0xFFFFu : 0) | ((bits & 2) != 0 ? 0xFFFF0000u : 0);
    }
  }

  // The address of the lane's 16 bytes of a step of 16 queries in a tile of kRows keys, as
  // stmatrix.x4 and ldmatrix.x4 take it for the warp's 16 keys. The swizzle makes it an exclusive
  // or of that of step 0 and a constant.
  template <int kRows>
  __device__ __forceinline__ std::uint32_t step_address(const unsigned char* scores,
                                                        int step) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int row = first_row_ + warp_row() + lane % 16;
    const std::uint32_t first = ptx::shared_address(scores) + tile::swizzled(row, lane / 16 * 16);
    return (first ^ static_cast<std::uint32_t>(step % 4 * 2 * tile::kChunkBytes)) +
           step / 4 * kRows * tile::kPanelRowBytes;
  }

  // Stores the warp's rows of dS^T or P^T in a tile of kRows keys.
  template <int kRows>
  __device__ __forceinline__ void store_scores(const std::uint32_t (&from)[kScores / 2],
                                               unsigned char* to) const {
#pragma unroll
    for (int step = 0; step < kScores / 8; ++step) {
      const std::uint32_t pairs[4] = {from[4 * step], from[4 * step + 1], from[4 * step + 2],
                                      from[4 * step + 3]};
      ptx::stmatrix_x4(step_address<kRows>(to, step), pairs);
    }
  }

  // The warp's first key among the warpgroup's 64.
  __device__ __forceinline__ static int warp_row() {
    return static_cast<int>(threadIdx.x % 128 / 32) * tile::kWarpRows;
  }

  const Parameters& parameters_;
  SharedMemory& shared_;
  Mask mask_;

 private:
  // A key with an element that is not finite has only scores that are not finite either: a row that
  // sees it has an LSE of NaN, and in all other rows its score is -inf, which is masked.
  __device__ void hide_non_finite_keys(int stage,
                                       std::uint32_t (&visible)[tile::kRowsPerLane]) const {
    std::uint32_t nan_rows = 0;
#pragma unroll 1
    for (int i = 0; i < kScores / 4; ++i) {
      const float2 lse = statistics(stage, 0, i);
      if (lse.x != lse.x) nan_rows |= 1u << 2 * i;
      if (lse.y != lse.y) nan_rows |= 2u << 2 * i;
    }
    const int row = first_row_ + warp_row() + tile::lane_row(static_cast<int>(threadIdx.x % 32), 0);
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      if (shared_.non_finite_key[row + 8 * which] != 0) visible[which] &= nan_rows;
    }
  }

  int first_row_;
  std::int32_t first_key_;
};

}  // namespace tilewise::cuda::backward::sm90
