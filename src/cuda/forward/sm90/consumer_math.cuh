// A consumer's products and softmax.
#pragma once

#include "cuda/forward/sm90/consumer.cuh"
#include "cuda/forward/sm90/recompute_scores.cuh"

namespace tilewise::cuda::sm90 {

// Issues S (64, k_tile) = Q K^T.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::issue_qk(float (&scores)[kScores]) const {
  gemm_ss<kConfig.fp16, kConfig.k_tile, kConfig.head_dim, kConfig.k_tile>(
      q_address(), k_address(k_.state()), scores);
  ptx::wgmma_commit();
}

// Issues steps [begin, end) of O (64, Dv) += P (64, k_tile) V. kArrives: the next warpgroup may
// issue its products before the last steps are done, since it takes as long to begin as they take.
template <KernelConfig kConfig>
template <bool kArrives>
__device__ __forceinline__ void Consumer<kConfig>::issue_pv_steps(std::uint64_t v, Fragments& f,
                                                                  int begin, int end) const {
  gemm_rs<kConfig.fp16, kConfig.value_dim>(f.probs, v, f.out, begin, end, accumulates_,
                                           [&](int step) {
                                             if (kArrives && step == kPvSteps - kOrderSteps)
                                               order_barrier_arrive();
                                           });
}

// Issues all of the steps, as one group.
template <KernelConfig kConfig>
template <bool kArrives>
__device__ __forceinline__ void Consumer<kConfig>::issue_pv(Fragments& f) {
  issue_pv_steps<kArrives>(v_descriptor(), f, 0, kPvSteps);
  ptx::wgmma_commit();
  accumulates_ = true;
}

// The same for the last key tile of a query tile (KernelConfig::skips_half()).
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::issue_last_pv(Fragments& f) {
  if constexpr (kConfig.skips_half()) {
    const std::uint64_t v = v_descriptor();
    if (!last_half_hidden_) issue_pv_steps(v, f, 0, kPvSteps / 2);
    issue_pv_steps(v, f, kPvSteps / 2, kPvSteps);
    ptx::wgmma_commit();
    accumulates_ = true;
  } else {
    issue_pv(f);
  }
}

// Issues all but the last steps; exp2_during_pv() issues those.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::issue_early_pv(std::uint64_t v, Fragments& f) {
  issue_pv_steps(v, f, 0, kEarlyPvSteps);
  ptx::wgmma_commit();
  accumulates_ = true;
}

// S has arrived: the score mod, the mask, the maxima; K is released.
template <KernelConfig kConfig>
__device__ __forceinline__ tile::Anchors Consumer<kConfig>::accept_and_update_max(
    const MaskBits& mask, Fragments& f) {
  accept_scores(f.scores);
  if constexpr (!kConfig.releases_k_late()) release_k();
  apply_score_mod_and_mask(mask, f.scores);
  const tile::Anchors anchors = tile::update_max(f.scores, f.states, parameters_.scale_log2);
  if constexpr (kConfig.releases_k_late()) release_k();
  return anchors;
}

// P = exp2(S * scale_log2 - anchor), in the place of S.
template <KernelConfig kConfig>
__device__ __forceinline__ tile::RowSums Consumer<kConfig>::exp2_scores(
    const tile::Anchors& anchors, Fragments& f) const {
  return tile::exp2_scores(f.scores, anchors, parameters_.scale_log2);
}

// The same while PV runs, whose last steps are issued one after each part of the scores.
template <KernelConfig kConfig>
__device__ __forceinline__ tile::RowSums Consumer<kConfig>::exp2_during_pv(
    std::uint64_t v, const tile::Anchors& anchors, Fragments& f) {
  tile::PartialSums sums;
#pragma unroll
  for (int part = 0; part < kPvSteps; ++part) {
    tile::exp2_scores(f.scores, part, kPvSteps, anchors, parameters_.scale_log2, sums);
    const int step = kEarlyPvSteps + part;
    if (step >= kPvSteps) continue;
    issue_pv_steps(v, f, step, step + 1);
    ptx::wgmma_commit();
  }
  return sums.row_sums();
}

// A prob of the tile has overflowed: S once more, since P has taken its place, and P against new
// maxima in the rows that overflowed. By the warp alone, while it holds Q and K.
template <KernelConfig kConfig>
__device__ __forceinline__ void Consumer<kConfig>::recompute_tile(tile::RowSums& sums,
                                                                  Fragments& f) const {
  const auto scores = [&] {
    const MaskBits mask = mask_of_tile<false>();
    recompute_scores<kConfig, kConfig.k_tile>(q_address(), k_address(k_.state()), f.scores);
    apply_mask(mask, f.scores);
  };
  const auto exp2 = [&](const tile::Anchors& anchors) { return exp2_scores(anchors, f); };
  recompute_with_new_max(sums, f, scores, exp2);
}
template <KernelConfig kConfig>
template <class ComputeScores, class Exp2>
__device__ __forceinline__ void Consumer<kConfig>::recompute_with_new_max(
    tile::RowSums& sums, Fragments& f, const ComputeScores& compute_scores,
    const Exp2& exp2) const {
  request_careful_pass();
  const tile::OverflowedRows overflowed = tile::overflowed_rows<kConfig.fp16>(sums);
  compute_scores();
  const tile::Anchors anchors = tile::update_max_of_overflowed<kConfig.fp16>(
      overflowed, tile::row_max_of(f.scores), f.states, parameters_.scale_log2);
  tile::scale_rows(f.out, anchors.factor);
  sums = exp2(anchors);
  tile::scale_sums(anchors, f.states);
}

}  // namespace tilewise::cuda::sm90
