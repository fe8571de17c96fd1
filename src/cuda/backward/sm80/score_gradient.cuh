// From the products Q K^T and dO V^T to P and dS, on fragments: FlashAttention-2 (arXiv
// 2307.08691), Algorithm 2, lines 11 to 14, with every option of the semantics.
#pragma once

#include "cuda/backward/sm80/gemm.cuh"
#include "cuda/backward/sm80/query_mask.cuh"
#include "cuda/backward/sm80/shared.cuh"
#include "cuda/ptx/arithmetic.cuh"
#include "cuda/tile/dropout.cuh"
#include "cuda/tile/score_mod.cuh"

namespace tilewise::cuda::backward::sm80 {

template <KernelConfig kConfig>
class ScoreGradient {
 public:
  using Scores = WarpTile<kConfig.q_tile, kConfig.k_tile, kConfig.warps, kConfig.score_row_warps>;
  using Fragments = typename Scores::Fragments;
  static constexpr int kRowBlocks = Scores::kRowBlocks;
  static constexpr int kCount = Scores::kCount;
  static constexpr int kRows = kRowBlocks * tile::kRowsPerLane;  // of a lane, 8 apart

  __device__ __forceinline__ ScoreGradient(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters),
        shared_(shared),
        tile_(shared.tile),
        mask_(parameters, tile_, shared.mask) {}

 protected:
  // Turns S = Q K^T and dP = dO V^T of a tile of queries into P, after dropout, and dS, the
  // gradient of the products without the scale.
  __device__ __forceinline__ void probs_and_gradients(std::int32_t q_tile, int stage,
                                                      tile::TileClass tile_class, Fragments& scores,
                                                      Fragments& dprobs) const {
    if (kConfig.score_mod || tile_class != tile::kFull || shared_.k_is_non_finite ||
        shared_.non_finite_pass) {
      masked_probs_and_gradients(q_tile, stage, tile_class, scores, dprobs);
    } else {
      plain_probs_and_gradients(stage, scores, dprobs);
    }
  }

 private:
  // The lane's first row of the tile of queries, and its first key of the tile of keys.
  __device__ __forceinline__ static std::int32_t lane_row() {
    return Scores::row() + tile::lane_row(threadIdx.x % 32, 0);
  }
  __device__ __forceinline__ static std::int32_t lane_key() {
    return Scores::column() + tile::lane_column(threadIdx.x % 32);
  }

  // P = exp(S - LSE), at most 1: at large scores the rounding of LSE would make it infinite. NaN
  // stays NaN.
  __device__ __forceinline__ float prob(float score, float lse_log2) const {
    return ptx::exp2_approx(ptx::min_nan(__fmaf_rn(score, parameters_.scale_log2, -lse_log2), 0));
  }

  __device__ __forceinline__ void plain_probs_and_gradients(int stage, Fragments& scores,
                                                            Fragments& dprobs) const {
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
#pragma unroll
      for (int which = 0; which < tile::kRowsPerLane; ++which) {
        const std::int32_t row = lane_row() + 16 * row_block + 8 * which;
        const float lse_log2 = shared_.statistics[stage][0][row];
        const float delta = shared_.statistics[stage][1][row];
#pragma unroll
        for (int r = 0; r < kCount; ++r) {
          if (tile::register_row(r) != which) continue;
          float& p = scores[row_block][r];
          p = prob(p, lse_log2);
          dprobs[row_block][r] = p * (dprobs[row_block][r] - delta);
        }
      }
    }
  }

  // The mask bits of the lane's rows. A key with an element that is not finite has only scores that
  // are not finite either: a row that sees it has an LSE of NaN, and in all other rows its score is
  // -inf, which is masked.
  __device__ __forceinline__ void mask_bits(std::int32_t q_tile, int stage,
                                            tile::TileClass tile_class,
                                            std::uint32_t (&visible)[kRows]) const {
    const std::int32_t row = q_tile * kConfig.q_tile + lane_row();
    if (tile_class != tile::kFull) {
      const std::int32_t own_column = tile::lane_column(threadIdx.x % 32);
      mask_.mask_bits(row, 8, tile::FragmentColumns{tile_.first + Scores::column(), own_column},
                      visible);
    } else {
#pragma unroll
      for (std::uint32_t& bits : visible) bits = ~0u;
    }
    if (!shared_.k_is_non_finite) return;
    std::uint32_t non_finite = 0;
#pragma unroll 1
    for (int bit = 0; bit < Scores::kOwnColumns / 4; ++bit) {
      if (shared_.non_finite_key[lane_key() + bit / 2 * 8 + bit % 2] != 0) non_finite |= 1u << bit;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float lse = shared_.statistics[stage][0][lane_row() + 8 * i];
      if (lse == lse) visible[i] &= ~non_finite;
    }
  }

  __device__ __forceinline__ void masked_probs_and_gradients(std::int32_t q_tile, int stage,
                                                             tile::TileClass tile_class,
                                                             Fragments& scores,
                                                             Fragments& dprobs) const {
    std::uint32_t visible[kRows];
    mask_bits(q_tile, stage, tile_class, visible);
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
      std::uint32_t own[tile::kRowsPerLane] = {visible[2 * row_block], visible[2 * row_block + 1]};
      const std::int32_t row = q_tile * kConfig.q_tile + lane_row() + 16 * row_block;
      if constexpr (kConfig.score_mod) {
        modified_block(row, lane_row() + 16 * row_block, stage, own, scores[row_block],
                       dprobs[row_block]);
      } else {
        masked_block(lane_row() + 16 * row_block, stage, own, scores[row_block], dprobs[row_block]);
      }
    }
  }

  // A row block of scores without score mod. Masked pairs are selected out, not multiplied out.
  __device__ __forceinline__ void masked_block(std::int32_t tile_row, int stage,
                                               const std::uint32_t (&visible)[tile::kRowsPerLane],
                                               float (&scores)[kCount],
                                               float (&dprobs)[kCount]) const {
    tile::apply_mask_bits<tile::FragmentLayout>(scores, visible);
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      const std::int32_t row = tile_row + 8 * tile::register_row(r);
      const float score = scores[r];
      const bool masked = score == -math::Limits<float>::kInfinity;
      const float p = masked ? 0 : prob(score, shared_.statistics[stage][0][row]);
      scores[r] = p;
      dprobs[r] = math::score_gradient(p, dprobs[r], shared_.statistics[stage][1][row]);
    }
  }

  // A row block of scores with score mod and dropout. `row` is the lane's first row in the
  // sequence.
  __device__ __forceinline__ void modified_block(std::int32_t row, std::int32_t tile_row, int stage,
                                                 std::uint32_t (&visible)[tile::kRowsPerLane],
                                                 float (&scores)[kCount],
                                                 float (&dprobs)[kCount]) const {
    const Problem& problem = parameters_.problem;
    float derivative[kCount];
    softcap_derivatives(scores, derivative);
    const tile::Head head = tile::head_of(problem, tile_.sequence.batch, tile_.head,
                                          static_cast<std::int32_t>(tile_.sequence.diagonal));
    tile::apply_score_mod<tile::FragmentLayout, tile::Softcap>(
        problem, parameters_.scaling, parameters_.pair_loads, head, row, tile_.first + lane_key(),
        scores, visible);
    masked_block_with_dropout(row, tile_row, stage, visible, scores, dprobs);
#pragma unroll
    for (int r = 0; r < kCount; ++r) dprobs[r] *= derivative[r];
  }

  // From the products: a saturated score has lost the information.
  __device__ __forceinline__ void softcap_derivatives(const float (&products)[kCount],
                                                      float (&derivative)[kCount]) const {
    const tile::ScoreScaling& scaling = parameters_.scaling;
#pragma unroll
    for (int r = 0; r < kCount; ++r) derivative[r] = 1;
    if (scaling.cap <= 0) return;
#pragma unroll
    for (int r = 0; r < kCount; ++r)
      derivative[r] = math::softcap_derivative(products[r] * scaling.scale, scaling.cap);
  }

  __device__ __forceinline__ void masked_block_with_dropout(
      std::int32_t row, std::int32_t tile_row, int stage,
      const std::uint32_t (&visible)[tile::kRowsPerLane], float (&scores)[kCount],
      float (&dprobs)[kCount]) const {
    const Problem& problem = parameters_.problem;
    if (problem.dropout_p == 0) return masked_block(tile_row, stage, visible, scores, dprobs);
    const math::DropoutRule rule =
        math::dropout_rule(problem.dropout_p, problem.dropout_seed, problem.dropout_offset);
    float keep[kCount];
#pragma unroll
    for (int r = 0; r < kCount; ++r) keep[r] = static_cast<float>(rule.keep_scale);
    tile::dropout(rule, tile_.sequence.batch * problem.heads + tile_.head, row,
                  tile_.first + Scores::column(), keep);
#pragma unroll
    for (int r = 0; r < kCount; ++r) dprobs[r] = keep[r] == 0 ? 0 : dprobs[r] * keep[r];
    masked_block(tile_row, stage, visible, scores, dprobs);
#pragma unroll
    for (int r = 0; r < kCount; ++r) scores[r] *= keep[r];
  }

 protected:
  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  KeyTile& tile_;
  QueryMask<kConfig.q_tile, kConfig.k_tile> mask_;
};

}  // namespace tilewise::cuda::backward::sm80
