// What a thread does with its part of S^T or dP^T, 64 keys by q_tile queries: P and dS from them,
// masked and rounded to 16 bits, and their way to shared memory.
#pragma once

#include "cuda/backward/query_mask.cuh"
#include "cuda/backward/sm90/parameters.h"
#include "cuda/backward/sm90/score_math.cuh"
#include "cuda/ptx/address.cuh"
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

  // S becomes P.
  __device__ __forceinline__ void compute_probs(int stage, float (&scores)[kScores]) const {
    sm90::compute_probs(shared_, parameters_.scale_log2, stage, scores);
  }

  // dP becomes dS.
  __device__ __forceinline__ void compute_gradients(int stage,
                                                    const std::uint32_t (&probs)[kScores / 2],
                                                    float (&dprobs)[kScores]) const {
    sm90::compute_gradients<kFp16>(shared_, stage, probs, dprobs,
                                   [](int, float gradient) { return gradient; });
  }

  // Rounds P or dS to 16 bits. That of masked pairs becomes 0, whatever it was.
  __device__ __forceinline__ void pack_visible(std::int32_t q_tile, int stage, bool masked,
                                               const float (&from)[kScores],
                                               std::uint32_t (&to)[kScores / 2]) const {
    pack_scores<kFp16>(from, to);
    if (masked) hide_masked(q_tile, stage, {}, to);
  }

  // hidden: bits of other pairs that are masked.
  __device__ __forceinline__ void hide_masked(std::int32_t q_tile, int stage,
                                              const std::uint32_t (&hidden)[tile::kRowsPerLane],
                                              std::uint32_t (&to)[kScores / 2]) const {
    const int lane = static_cast<int>(ptx::opaque(threadIdx.x) % 32);
    std::uint32_t visible[tile::kRowsPerLane];
    mask_.query_bits(first_key_ + warp_row() + tile::lane_row(lane, 0), 8,
                     tile::FragmentColumns{q_tile * kQTile, tile::lane_column(lane)}, visible);
    if (shared_.non_finite_keys != 0)
      hide_non_finite_keys<kScores>(shared_, stage, first_row_, visible);
    visible[0] &= ~hidden[0];
    visible[1] &= ~hidden[1];
    keep_visible(visible, to);
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
  int first_row_;
  std::int32_t first_key_;
};

}  // namespace tilewise::cuda::backward::sm90
