// Online softmax on a fragment of scores (tile/fragment.h). A lane holds a state (src/math) for
// each of its two rows, and exponentials are the GPU's own exp2 instruction.
#pragma once

#include "cuda/ptx/arithmetic.cuh"
#include "cuda/tile/fragment.h"
#include "math/softmax_state.h"

namespace tilewise::cuda::tile {

// The states of a lane's two rows. `max` is the same in the four lanes of a row; `sum` is the part
// of the sum that belongs to this lane's columns.
struct RowStates {
  math::SoftmaxState<float> row[kRowsPerLane];

  __device__ __forceinline__ void clear() {
    for (auto& state : row) state = math::empty_state<float>();
  }
};

// The maximum and the sum over the four lanes of a row.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// A row keeps its max, and its probs may grow to 2^kRescaleThreshold, before its sum and outputs
// are rescaled to a new max. That makes rescaling rare, and 2^8 * 2^16 keys is far from any limit
// of fp32.
inline constexpr float kRescaleThreshold = 8.0f;

// The anchors of a lane's two rows.
struct Anchors {
  float anchor[kRowsPerLane];  // max * scale_log2, which exp2_scores() subtracts
  float factor[kRowsPerLane];  // by which sums and outputs so far are to be rescaled
};

// Each row has kPartials partial maxima and partial sums that do not depend on each other. A warp
// has its scheduler to itself here: an instruction takes four cycles, in which two rows with two
// partial results each can issue four.
inline constexpr int kPartials = 2;

// The maxima of a tile of scores, for a lane's two rows.
struct RowMax {
  float row[kRowsPerLane];
};

template <int kCount>
__device__ __forceinline__ RowMax row_max_of(const float (&scores)[kCount]) {
  float max[kRowsPerLane][kPartials];
#pragma unroll
  for (int r = 0; r < kCount; r += 2) {
    float& partial = max[register_row(r)][r / 4 % kPartials];
    const float pair = fmaxf(scores[r], scores[r + 1]);
    partial = r / 4 < kPartials ? pair : fmaxf(partial, pair);
  }
  return {{quad_max(fmaxf(max[0][0], max[0][1])), quad_max(fmaxf(max[1][0], max[1][1]))}};
}

// Updates the states by the maxima of a tile of scores, and returns the new anchors. The max of a
// row stays as it is unless the new one exceeds it by more than the rescale threshold. scale_log2:
// softmax scale * log2(e), more than 0.
__device__ __forceinline__ Anchors update_max(const RowMax& maxima, RowStates& states,
                                              float scale_log2) {
  Anchors anchors;
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) {
    math::SoftmaxState<float>& state = states.row[which];
    const float before = state.max;
    const float seen = fmaxf(before, maxima.row[which]);
    state.max = (seen - before) * scale_log2 <= kRescaleThreshold ? before : seen;
    anchors.anchor[which] = math::anchor(state.max) * scale_log2;
    // The factor is exactly 1 where the max stays. The fused multiply-subtract would give the
    // rounding error of the product instead of 0.
    anchors.factor[which] =
        state.max == before ? 1.0f : ptx::exp2_approx(before * scale_log2 - anchors.anchor[which]);
  }
  return anchors;
}

template <int kCount>
__device__ __forceinline__ Anchors update_max(const float (&scores)[kCount], RowStates& states,
                                              float scale_log2) {
  return update_max(row_max_of(scores), states, scale_log2);
}

// Says whether any row of the warp has seen no key yet.
__device__ __forceinline__ bool any_without_key(const RowStates& states) {
  const float none = -math::Limits<float>::kInfinity;
  return __any_sync(~0u, states.row[0].max == none || states.row[1].max == none);
}

// Sets the max of the rows that have seen no key yet; other rows stay as they are.
__device__ __forceinline__ void init_max_without_key(const RowMax& maxima, RowStates& states) {
  const float none = -math::Limits<float>::kInfinity;
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) {
    float& max = states.row[which].max;
    max = max == none ? maxima.row[which] : max;
  }
}

// Returns the anchors of rows whose max stays.
__device__ __forceinline__ Anchors anchors_of(const RowStates& states, float scale_log2) {
  return {
      {math::anchor(states.row[0].max) * scale_log2, math::anchor(states.row[1].max) * scale_log2},
      {1.0f, 1.0f}};
}

// The sums of a tile of probs over this lane's columns, for its two rows.
struct RowSums {
  float row[kRowsPerLane];
};

__device__ __forceinline__ RowSums sum(const RowSums& a, const RowSums& b) {
  return {{a.row[0] + b.row[0], a.row[1] + b.row[1]}};
}

// The partial sums of a tile of probs over this lane's columns, for its two rows.
struct PartialSums {
  float sum[kRowsPerLane][kPartials];

  __device__ __forceinline__ RowSums row_sums() const {
    return {{sum[0][0] + sum[0][1], sum[1][0] + sum[1][1]}};
  }
  // Returns bits that depend on the sums of both rows.
  __device__ __forceinline__ std::uint32_t bits() const {
    return __float_as_uint(sum[0][kPartials - 1]) | __float_as_uint(sum[1][kPartials - 1]);
  }
};

// Replaces scores by probs exp2(score * scale_log2 - anchor): part `part` of `parts`. The parts
// follow each other, and the first one starts the sums.
//
// The exponent is one fused multiply-subtract, with an anchor that is rounded once. All probs of a
// row are thus off by the same factor, which anchor_rounding_of() returns. Scores beyond 2^30 lose
// that property; a careful step takes them relative to their maximum (tile/careful_softmax.cuh).
template <int kCount>
__device__ __forceinline__ void exp2_scores(float (&scores)[kCount], int part, int parts,
                                            const Anchors& anchors, float scale_log2,
                                            PartialSums& partial_sums) {
#pragma unroll
  for (int r = kCount / parts * part; r < kCount / parts * (part + 1); r += 2) {
    const int which = register_row(r);
    scores[r] = ptx::exp2_approx(__fmaf_rn(scores[r], scale_log2, -anchors.anchor[which]));
    scores[r + 1] = ptx::exp2_approx(__fmaf_rn(scores[r + 1], scale_log2, -anchors.anchor[which]));
    float& partial = partial_sums.sum[which][r / 4 % kPartials];
    const float pair = scores[r] + scores[r + 1];
    partial = r / 4 < kPartials ? pair : partial + pair;
  }
}

// Replaces all scores by probs and returns their sums.
template <int kCount>
__device__ __forceinline__ RowSums exp2_scores(float (&scores)[kCount], const Anchors& anchors,
                                               float scale_log2) {
  PartialSums partial_sums;
  exp2_scores(scores, 0, 1, anchors, scale_log2, partial_sums);
  return partial_sums.row_sums();
}

// Rescales the sums so far and adds those of a tile.
__device__ __forceinline__ void add_sums(const RowSums& sums, const Anchors& anchors,
                                         RowStates& states) {
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) {
    math::SoftmaxState<float>& state = states.row[which];
    state.sum = __fmaf_rn(state.sum, anchors.factor[which], sums.row[which]);
  }
}

// Rescales the sums so far.
__device__ __forceinline__ void scale_sums(const Anchors& anchors, RowStates& states) {
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) states.row[which].sum *= anchors.factor[which];
}

// The largest sum of probs that a lane may have where the anchor is not the maximum of the row.
// bf16 has the exponent range of fp32, and exp2 of such a large exponent is still accurate enough
// for a prob of 16 bits; fp16 ends at 2^16.
template <bool kFp16>
inline constexpr float kOverflowLimit = kFp16 ? 0x1p15f : 0x1p60f;

// Which of a lane's two rows have a sum above the limit in any of their four lanes.
struct OverflowedRows {
  bool row[kRowsPerLane];
};
template <bool kFp16>
__device__ __forceinline__ bool any_overflowed(const RowSums& sums) {
  return __any_sync(~0u,
                    sums.row[0] > kOverflowLimit<kFp16> || sums.row[1] > kOverflowLimit<kFp16>);
}
template <bool kFp16>
__device__ __forceinline__ OverflowedRows overflowed_rows(const RowSums& sums) {
  return {{quad_max(sums.row[0]) > kOverflowLimit<kFp16>,
           quad_max(sums.row[1]) > kOverflowLimit<kFp16>}};
}

// The distance, in log 2, by which the maximum of a tile may exceed the anchor of its row before a
// lazy max is taken again. A prob that far above 1 makes its lane's sum overflow, so that
// any_overflowed() finds every such row; the fraction covers the rounding of the prob.
template <bool kFp16>
inline constexpr float kLazyRescaleThreshold = kFp16 ? 15.0625f : 60.0625f;

// Sets the max of rows that have overflowed, and whose maximum exceeds the threshold, to the maxima
// of the tile; other rows stay as they are. The rule is that of update_max_carefully(), so that a
// row has the same bits on both ways.
template <bool kFp16>
__device__ __forceinline__ Anchors update_max_of_overflowed(const OverflowedRows& overflowed,
                                                            const RowMax& maxima, RowStates& states,
                                                            float scale_log2) {
  Anchors anchors;
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) {
    float& max = states.row[which].max;
    const float before = math::anchor(max);
    const bool grows = overflowed.row[which] &&
                       (maxima.row[which] - before) * scale_log2 > kLazyRescaleThreshold<kFp16>;
    if (grows) max = maxima.row[which];
    anchors.anchor[which] = math::anchor(max) * scale_log2;
    anchors.factor[which] =
        grows ? ptx::exp2_approx(before * scale_log2 - anchors.anchor[which]) : 1.0f;
  }
  return anchors;
}

// Rounds probs to 16 bits and packs them in pairs, as the left operand of a product.
//   operand (kCount / 2)
template <bool kFp16, int kCount>
__device__ __forceinline__ void pack_probs(const float (&probs)[kCount],
                                           std::uint32_t (&operand)[kCount / 2]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    operand[i] = ptx::pack<kFp16>(probs[2 * i], probs[2 * i + 1]);
  }
}

// Returns 2^(max * scale_log2 - anchor), the factor by which the rounding of the anchor has made
// the probs of a row too large. Rounding to 16 bits removes the factor: a prob that ought to be 1
// is 1 as an operand, but not in the sum.
__device__ __forceinline__ float anchor_rounding_of(float max, float scale_log2) {
  const float error = __fmaf_rn(max, scale_log2, -(max * scale_log2));
  constexpr float kSmall = 0x1p-10f;  // above it, probs are less accurate than its square
  return fabsf(error) < kSmall ? __fmaf_rn(error, static_cast<float>(math::kLn2), 1.0f) : 1.0f;
}

// Multiplies each row of a fragment by its factor.
template <int kCount>
__device__ __forceinline__ void scale_rows(float (&fragment)[kCount],
                                           const float (&factor)[kRowsPerLane]) {
#pragma unroll
  for (int r = 0; r < kCount; ++r) fragment[r] *= factor[register_row(r)];
}
// Rescales the rows of O, unless all factors of the warp are 1.
template <int kCount>
__device__ __forceinline__ void rescale(float (&out)[kCount], const float (&factor)[kRowsPerLane]) {
  if (__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) scale_rows(out, factor);
}

}  // namespace tilewise::cuda::tile
