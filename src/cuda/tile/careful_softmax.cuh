// The online softmax of a careful step (glossary.md), which computes what the fast step does, with
// the same bits, and what the fast step cannot: rows whose scores are huge, and values so large
// that an unnormalised sum of them would overflow.
#pragma once

#include "cuda/tile/softmax.cuh"

namespace tilewise::cuda::tile {

// An anchor of 2^30 or more may be rounded by 64 or more, so that the prob of the maximum leaves
// the range of float. The scores of such a row are at least 64 apart, in log 2, where they differ.
inline constexpr float kHugeAnchor = 0x1p30f;

__device__ __forceinline__ bool is_huge(float anchor, float least = kHugeAnchor) {
  return fabsf(anchor) >= least && fabsf(anchor) < math::Limits<float>::kInfinity;
}

// Updates the states by the maxima of a tile, as update_max() does, with the threshold of an exact
// max or of a lazy one. Factors of huge rows come from the difference of the maxima, since their
// anchors say too little.
template <bool kLazy, bool kFp16>
__device__ __forceinline__ Anchors update_max_carefully(const RowMax& maxima, RowStates& states,
                                                        float scale_log2) {
  constexpr float kThreshold = kLazy ? kLazyRescaleThreshold<kFp16> : kRescaleThreshold;
  const float none = -math::Limits<float>::kInfinity;
  Anchors anchors;
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) {
    float& max = states.row[which].max;
    const float before = max;
    const float growth = (maxima.row[which] - before) * scale_log2;
    if (before == none || growth > kThreshold) max = maxima.row[which];
    anchors.anchor[which] = math::anchor(max) * scale_log2;
    const float difference = is_huge(anchors.anchor[which])
                                 ? (before - max) * scale_log2
                                 : before * scale_log2 - anchors.anchor[which];
    anchors.factor[which] = max == before || before == none ? 1.0f : ptx::exp2_approx(difference);
  }
  return anchors;
}

// Prepares scores for exponentials: those of a huge row less its maximum, which is exact where it
// matters, against an anchor of 0. Other rows keep their bits. shift: probs of all rows are
// 2^-shift times as large. least: the anchor from which on a row is huge.
template <int kCount>
__device__ __forceinline__ void rebase_scores(float (&scores)[kCount], const RowStates& states,
                                              float shift, Anchors& anchors,
                                              float least = kHugeAnchor) {
  float base[kRowsPerLane];
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) {
    const bool huge = is_huge(anchors.anchor[which], least);
    base[which] = huge ? states.row[which].max : 0.0f;
    anchors.anchor[which] = (huge ? 0.0f : anchors.anchor[which]) + shift;
  }
#pragma unroll
  for (int r = 0; r < kCount; ++r) scores[r] -= base[register_row(r)];
}

}  // namespace tilewise::cuda::tile
