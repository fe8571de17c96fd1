// The update of the maxima in an exact-max step, for scores of any size.
//
// The exponent of a prob is score * scale_log2 - anchor, with an anchor that is rounded once. From
// kHugeAnchor on, that rounding would reach the exponent itself: the maximum of a row would have
// any prob instead of about 1. Such a row subtracts its max from the scores first, which is exact
// near the max, and has the anchor 0. Other rows keep their bits.
#pragma once

#include "cuda/tile/softmax.cuh"

namespace tilewise::cuda::tile {

inline constexpr float kHugeAnchor = 0x1p20f;

__device__ __forceinline__ bool is_huge(float anchor) { return fabsf(anchor) >= kHugeAnchor; }

// update_max() whose factors hold for huge rows, too.
__device__ __forceinline__ Anchors update_exact_max(const RowMax& maxima, RowStates& states,
                                                    float scale_log2) {
  Anchors anchors;
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) {
    math::SoftmaxState<float>& state = states.row[which];
    const float before = state.max;
    const float seen = fmaxf(before, maxima.row[which]);
    const float growth = (seen - before) * scale_log2;
    state.max = growth <= kRescaleThreshold ? before : seen;
    const float anchor = math::anchor(state.max) * scale_log2;
    anchors.anchor[which] = anchor;
    const float exponent = is_huge(anchor) ? -growth : before * scale_log2 - anchor;
    anchors.factor[which] = state.max == before ? 1.0f : ptx::exp2_approx(exponent);
  }
  return anchors;
}

// Whether a step has more to do than exponentials for a lane's rows: they are to be rescaled, or
// huge.
__device__ __forceinline__ bool needs_rescale(const Anchors& anchors) {
  return anchors.factor[0] != 1.0f || anchors.factor[1] != 1.0f || is_huge(anchors.anchor[0]) ||
         is_huge(anchors.anchor[1]);
}

// Subtracts the max of huge rows from their scores, and sets their anchors to 0.
template <int kCount>
__device__ __forceinline__ void subtract_huge_max(const RowStates& states, Anchors& anchors,
                                                  float (&scores)[kCount]) {
  float huge[kRowsPerLane];
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) {
    const bool is = is_huge(anchors.anchor[which]);
    huge[which] = is ? states.row[which].max : 0;
    anchors.anchor[which] = is ? 0 : anchors.anchor[which];
  }
#pragma unroll
  for (int r = 0; r < kCount; ++r) scores[r] -= huge[register_row(r)];
}

// anchor_rounding_of(), which is 1 for a huge row.
__device__ __forceinline__ float exact_max_rounding_of(float max, float scale_log2) {
  return is_huge(max * scale_log2) ? 1.0f : anchor_rounding_of(max, scale_log2);
}

}  // namespace tilewise::cuda::tile
