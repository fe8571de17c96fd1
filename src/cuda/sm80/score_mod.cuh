// From products to scores: score mod and mask, and dropout of probs.
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
  using Base::tile_;

  // Whether a row of the block may see less than the whole tile. Dropped keys are visible: their
  // prob is 0, and 0 * NaN is NaN.
  __device__ __forceinline__ bool may_hide_keys(tile::TileClass tile_class) const {
    if (tile_class != tile::kFull) return true;
    return kConfig.score_mod &&
           (parameters_.problem.mask.present() || parameters_.problem.bias.present());
  }

  // The rows of a lane are 8 apart, in all row blocks.
  __device__ __forceinline__ void apply_score_mod_and_mask(std::int32_t key_tile,
                                                           tile::TileClass tile_class,
                                                           float (&scores)[kRowBlocks][kScores]) {
    const std::int32_t row = lane_row<kConfig>(tile_, 0);
    const std::int32_t column = key_tile * kConfig.k_tile + pair_index<kConfig>() * kKeys;
    const std::int32_t own_column = tile::lane_column(ptx::opaque(threadIdx.x) % 32);
    std::uint32_t visible[kRowBlocks * tile::kRowsPerLane];
    if (tile_class != tile::kFull) {
      mask_.mask_bits(row, 8, tile::FragmentColumns{column, own_column}, visible);
    } else {
#pragma unroll
      for (int i = 0; i < kRowBlocks * tile::kRowsPerLane; ++i)
        visible[i] = row + 8 * i <= tile_.last ? ~0u : 0u;
    }
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
};

}  // namespace tilewise::cuda::sm80
