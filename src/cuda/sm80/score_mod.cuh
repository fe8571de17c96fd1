// From products to scores: score mod and mask, dropout of probs, and in the non-finite pass the
// rows that see an operand that is not finite.
#pragma once

#include "cuda/sm80/gemm.cuh"
#include "cuda/tile/dropout.cuh"
#include "cuda/tile/score_mod.cuh"

namespace tilewise::cuda::sm80 {

template <KernelConfig kConfig>
class ScoreMod : public Gemm<kConfig> {
 public:
  using Base = Gemm<kConfig>;
  using Base::kKeys;
  using Base::kRowBlocks;
  using Base::kScores;

  __device__ ScoreMod(const Parameters& parameters, Shared<kConfig>& shared)
      : Base(parameters, shared) {}

 protected:
  using Base::mask_;
  using Base::parameters_;
  using Base::shared_;
  using Base::tile_;

  // The rows of a lane are 8 apart, in all row blocks.
  __device__ __forceinline__ void apply_score_mod_and_mask(std::int32_t key_tile,
                                                           tile::TileClass tile_class,
                                                           float (&scores)[kRowBlocks][kScores]) {
    const std::int32_t row = lane_row<kConfig>(tile_, 0);
    const std::int32_t column = key_tile * kConfig.k_tile + pair_index<kConfig>() * kKeys;
    const std::int32_t own_column = tile::lane_column(threadIdx.x % 32);
    std::uint32_t visible[kRowBlocks * tile::kRowsPerLane];
    if (tile_class != tile::kFull) {
      mask_.mask_bits(row, 8, tile::FragmentColumns{column, own_column}, visible);
    } else {
#pragma unroll
      for (int i = 0; i < kRowBlocks * tile::kRowsPerLane; ++i)
        visible[i] = row + 8 * i <= tile_.last ? ~0u : 0u;
    }
    const bool non_finite_pass = shared_.non_finite_pass;
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
      std::uint32_t own[tile::kRowsPerLane] = {visible[2 * row_block], visible[2 * row_block + 1]};
      if constexpr (kConfig.score_mod) {
        const tile::Head head = tile::head_of(parameters_.problem, tile_.sequence.batch, tile_.head,
                                              static_cast<std::int32_t>(tile_.sequence.diagonal));
        tile::apply_score_mod<tile::FragmentLayout, tile::Softcap>(
            parameters_.problem, parameters_.scaling, parameters_.pair_loads, head,
            row + 16 * row_block, column + own_column, scores[row_block], own);
      }
      tile::apply_mask_bits<tile::FragmentLayout>(scores[row_block], own);
      if (non_finite_pass) flag_rows_that_see_non_finite(row_block, own, own_column);
    }
  }

  __device__ __forceinline__ void apply_dropout(int row_block, std::int32_t key_tile,
                                                float (&probs)[kScores]) {
    if constexpr (kConfig.score_mod) {
      const Problem& problem = parameters_.problem;
      if (problem.dropout_p == 0) return;
      const math::DropoutRule rule =
          math::dropout_rule(problem.dropout_p, problem.dropout_seed, problem.dropout_offset);
      tile::dropout(rule, tile_.sequence.batch * problem.heads + tile_.head,
                    lane_row<kConfig>(tile_, row_block), key_tile * kConfig.k_tile, probs);
    }
  }

  // ---- the non-finite pass ----

  // Clears the flags. Full tiles count as partial from now on, since the mask bits say which rows
  // see a key. All threads call it, between two barriers.
  __device__ void begin_non_finite_pass() {
    shared_.non_finite_pass = true;
    mask_.disable_full_tiles();
    shared_.sees_non_finite[threadIdx.x] = 0;
    for (int i = threadIdx.x; i < kConfig.q_tile(); i += kConfig.threads())
      shared_.non_finite_row[i] = 0;
    __syncthreads();
  }

  // Flags the lane's rows of a row block that see a key with an operand that is not finite.
  __device__ __forceinline__ void flag_rows_that_see_non_finite(
      int row_block, const std::uint32_t (&visible)[tile::kRowsPerLane], std::int32_t own_column) {
    std::uint32_t non_finite = 0;
    const std::uint8_t* const non_finite_key =
        shared_.non_finite_key + pair_index<kConfig>() * kKeys;
    for (int bit = 0; bit < kKeys / 4; ++bit) {
      if (non_finite_key[bit / 2 * 8 + bit % 2 + own_column] != 0) non_finite |= 1u << bit;
    }
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      if ((visible[which] & non_finite) != 0)
        shared_.sees_non_finite[threadIdx.x] |= 1u << (row_block * tile::kRowsPerLane + which);
    }
  }
};

}  // namespace tilewise::cuda::sm80
