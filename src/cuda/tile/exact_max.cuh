// The update of the maxima in an exact-max step: with every tile of scores, a row takes a new max
// where it has outgrown its old one.
//
// The exponent of a prob is score * scale_log2 - anchor, with an anchor that is rounded once. In a
// huge row that rounding reaches the exponent itself, and the factor between two anchors.
#pragma once

#include "cuda/tile/careful_softmax.cuh"

namespace tilewise::cuda::tile {

inline constexpr float kHugeExactAnchor = 0x1p20f;

__device__ __forceinline__ bool is_huge_exact(float anchor) {
  return is_huge(anchor, kHugeExactAnchor);
}

// The result of an update of the maxima for a lane's two rows. `factor` of the anchors is 1: rows
// are rescaled by exact_max_factor() where has_grown() is true.
struct ExactMax {
  Anchors anchors;
  float before[kRowsPerLane];  // the maxima before the update

  __device__ __forceinline__ bool has_grown(const RowStates& states) const {
    return states.row[0].max != before[0] || states.row[1].max != before[1];
  }
  __device__ __forceinline__ bool reaches(float least) const {
    return fabsf(anchors.anchor[0]) >= least || fabsf(anchors.anchor[1]) >= least;
  }
};

// Updates the states like update_max().
__device__ __forceinline__ ExactMax update_exact_max(const RowMax& maxima, RowStates& states,
                                                     float scale_log2) {
  ExactMax result = {{{}, {1.0f, 1.0f}}, {}};
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) {
    float& max = states.row[which].max;
    const float before = max;
    const float seen = fmaxf(before, maxima.row[which]);
    max = (seen - before) * scale_log2 <= kRescaleThreshold ? before : seen;
    result.anchors.anchor[which] = math::anchor(max) * scale_log2;
    result.before[which] = before;
  }
  return result;
}

// The factor by which row `which`, whose max is now `max`, is to be rescaled. It is exactly 1 where
// the max stays. The anchors of a huge row say too little, so that its maxima give the factor.
__device__ __forceinline__ float exact_max_factor(const ExactMax& update, int which, float max,
                                                  float scale_log2) {
  const float before = update.before[which];
  const float anchor = update.anchors.anchor[which];
  const float exponent =
      is_huge_exact(anchor) ? (before - max) * scale_log2 : before * scale_log2 - anchor;
  return max == before ? 1.0f : ptx::exp2_approx(exponent);
}

// anchor_rounding_of(), which is 1 for a huge row.
__device__ __forceinline__ float exact_max_rounding_of(float max, float scale_log2) {
  return is_huge_exact(max * scale_log2) ? 1.0f : anchor_rounding_of(max, scale_log2);
}

}  // namespace tilewise::cuda::tile
