// Online softmax on a fragment of scores (tile/fragment.h): src/math's state for each of a lane's
// two rows, its exponents by the GPU's own instruction.
#pragma once

#include "cuda/ptx/arithmetic.cuh"
#include "cuda/tile/fragment.h"
#include "math/softmax_state.h"

namespace tilewise::cuda::tile {

// What a lane knows of its two rows: `max` is the same in the four lanes of a row, `sum` this
// lane's part of the sum.
struct RowStates {
  math::SoftmaxState<float> row[kRowsPerLane];

  __device__ __forceinline__ void clear() {
    for (auto& state : row) state = math::empty_state<float>();
  }
};

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// How much larger than 1 a prob may be, as an exponent of 2, before the rows' sums and outputs so
// far are multiplied to make room: rarely then, and 2^8 * 2^16 keys is far from any limit.
inline constexpr float kRescaleThreshold = 8.0f;

// Of the two rows: what exponents are taken against, max * scale_log2, and what the sums and
// outputs so far are to be multiplied with.
struct Anchors {
  float anchor[kRowsPerLane];
  float factor[kRowsPerLane];
};

// Independent chains of maxima and of sums for each row. A warp is alone with its scheduler here:
// an instruction takes four cycles, in which two rows of two chains have something to do.
inline constexpr int kChains = 2;

// The maxima of a tile of scores, of the two rows.
struct RowMax {
  float row[kRowsPerLane];
};

template <int kCount>
__device__ __forceinline__ RowMax row_max_of(const float (&scores)[kCount]) {
  float max[kRowsPerLane][kChains];
#pragma unroll
  for (int r = 0; r < kCount; r += 2) {
    float& chain = max[register_row(r)][r / 4 % kChains];
    const float pair = fmaxf(scores[r], scores[r + 1]);
    chain = r / 4 < kChains ? pair : fmaxf(chain, pair);
  }
  return {{quad_max(fmaxf(max[0][0], max[0][1])), quad_max(fmaxf(max[1][0], max[1][1]))}};
}

// Of some of the columns: a quarter of them up to 128, the first and the last among them, so that
// who sees the begin or the end of the tile has one.
template <int kCount>
__device__ __forceinline__ RowMax sampled_row_max_of(const float (&scores)[kCount]) {
  constexpr int kBlocks = kCount / 4;  // of 8 columns
  constexpr int kSome[] = {0, kBlocks / 3, kBlocks * 2 / 3, kBlocks - 1};
  float max[kRowsPerLane];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int which = 0; which < kRowsPerLane; ++which) {
      const int r = kSome[i] * 4 + which * 2;
      const float pair = fmaxf(scores[r], scores[r + 1]);
      max[which] = i == 0 ? pair : fmaxf(max[which], pair);
    }
  }
  return {{quad_max(max[0]), quad_max(max[1])}};
}

// Takes the maxima of a tile of scores into the states. max becomes that of the row, or stays what
// it was if that is not much less. `scale_log2` > 0 is what a scale_log2 of score is worth as an
// exponent of 2.
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
    // Exactly 1 where the maximum stays: fused with the product, the difference would be its
    // rounding.
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

// Rows that have seen no key take them as they are.
__device__ __forceinline__ void init_max(const RowMax& maxima, RowStates& states) {
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) states.row[which].max = maxima.row[which];
}

// Rows of the warp that have seen no key.
__device__ __forceinline__ bool any_without_key(const RowStates& states) {
  const float none = -math::Limits<float>::kInfinity;
  return __any_sync(~0u, states.row[0].max == none || states.row[1].max == none);
}

// Those alone take maxima.
__device__ __forceinline__ void init_max_without_key(const RowMax& maxima, RowStates& states) {
  const float none = -math::Limits<float>::kInfinity;
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) {
    float& max = states.row[which].max;
    max = max == none ? maxima.row[which] : max;
  }
}

// Where rows stay as they are.
__device__ __forceinline__ Anchors anchors_of(const RowStates& states, float scale_log2) {
  return {
      {math::anchor(states.row[0].max) * scale_log2, math::anchor(states.row[1].max) * scale_log2},
      {1.0f, 1.0f}};
}

// Rows that see all keys take them, too. Those of which the scores looked at were -inf take 0: what
// becomes of them shows in their sums, which are 1 at least where the maximum is of a score
// (sm90/epilogue.cuh).
__device__ __forceinline__ Anchors init_max_all_visible(const RowMax& maxima, RowStates& states,
                                                        float scale_log2) {
  Anchors anchors;
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) {
    const float max = math::anchor(maxima.row[which]);
    states.row[which].max = max;
    anchors.anchor[which] = max * scale_log2;
    anchors.factor[which] = 1.0f;
  }
  return anchors;
}

// This lane's part of the sums of a tile of probs.
struct RowSums {
  float row[kRowsPerLane];
};

__device__ __forceinline__ RowSums sum(const RowSums& a, const RowSums& b) {
  return {{a.row[0] + b.row[0], a.row[1] + b.row[1]}};
}

// Scores become probs exp(score - max), all at once or part by part from the first on.
//
// The exponent is one fused product, score * scale_log2 - anchor, with the anchor rounded once:
// every prob of the row is off by the same factor, which anchor_rounding_of() gives back. Scores
// beyond 2^30 lose that; the row is then redone by the non_finite_pass path (sm90/epilogue.cuh).
struct PartialSums {
  float sum[kRowsPerLane][kChains];

  __device__ __forceinline__ RowSums totals() const {
    return {{sum[0][0] + sum[0][1], sum[1][0] + sum[1][1]}};
  }
  // That have to do with every row.
  __device__ __forceinline__ std::uint32_t bits() const {
    return __float_as_uint(sum[0][kChains - 1]) | __float_as_uint(sum[1][kChains - 1]);
  }
};
template <int kCount>
__device__ __forceinline__ void exp2_scores(float (&scores)[kCount], int part, int parts,
                                            const Anchors& anchors, float scale_log2,
                                            PartialSums& chains) {
#pragma unroll
  for (int r = kCount / parts * part; r < kCount / parts * (part + 1); r += 2) {
    const int which = register_row(r);
    scores[r] = ptx::exp2_approx(__fmaf_rn(scores[r], scale_log2, -anchors.anchor[which]));
    scores[r + 1] = ptx::exp2_approx(__fmaf_rn(scores[r + 1], scale_log2, -anchors.anchor[which]));
    float& chain = chains.sum[which][r / 4 % kChains];
    const float pair = scores[r] + scores[r + 1];
    chain = r / 4 < kChains ? pair : chain + pair;
  }
}
template <int kCount>
__device__ __forceinline__ RowSums exp2_scores(float (&scores)[kCount], const Anchors& anchors,
                                               float scale_log2) {
  PartialSums chains;
  exp2_scores(scores, 0, 1, anchors, scale_log2, chains);
  return chains.totals();
}

__device__ __forceinline__ void add_sums(const RowSums& totals, const Anchors& anchors,
                                         RowStates& states) {
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) {
    math::SoftmaxState<float>& state = states.row[which];
    state.sum = __fmaf_rn(state.sum, anchors.factor[which], totals.row[which]);
  }
}

// How large a lane's part of probs may become that are taken against something else than the
// row's maximum. bf16 has the exponents of fp32, and the exponent of such a prob is still as
// exact as a prob of 16 bits needs; fp16 ends at 2^16.
template <bool kFp16>
inline constexpr float kMost = kFp16 ? 0x1p15f : 0x1p60f;

// Rows of which they are larger.
struct OverflowedRows {
  bool row[kRowsPerLane];
};
template <bool kFp16>
__device__ __forceinline__ bool any_overflowed(const RowSums& totals) {
  return __any_sync(~0u, totals.row[0] > kMost<kFp16> || totals.row[1] > kMost<kFp16>);
}
template <bool kFp16>
__device__ __forceinline__ OverflowedRows overflowed_rows(const RowSums& totals) {
  return {{quad_max(totals.row[0]) > kMost<kFp16>, quad_max(totals.row[1]) > kMost<kFp16>}};
}

// They take their maxima; others keep what they have.
__device__ __forceinline__ Anchors update_max_of_overflowed(const OverflowedRows& overflowed,
                                                            const RowMax& maxima, RowStates& states,
                                                            float scale_log2) {
  Anchors anchors;
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) {
    float& max = states.row[which].max;
    const float before = math::anchor(max) * scale_log2;
    if (overflowed.row[which]) max = maxima.row[which];
    anchors.anchor[which] = math::anchor(max) * scale_log2;
    anchors.factor[which] =
        overflowed.row[which] ? ptx::exp2_approx(before - anchors.anchor[which]) : 1.0f;
  }
  return anchors;
}

// Probs as the left operand of a product: rounded to 16 bits, in pairs. operand (kCount / 2)
template <bool kFp16, int kCount>
__device__ __forceinline__ void pack_probs(const float (&probs)[kCount],
                                           std::uint32_t (&operand)[kCount / 2]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    operand[i] = ptx::pack<kFp16>(probs[2 * i], probs[2 * i + 1]);
  }
}

// 2^(max * scale_log2 - anchor): what the probs of a row are too large by. They are rounded to 16
// bits as if they were not: a prob that ought to be 1 is 1 there, but not in the sum.
__device__ __forceinline__ float anchor_rounding_of(float max, float scale_log2) {
  const float error = __fmaf_rn(max, scale_log2, -(max * scale_log2));
  constexpr float kSmall = 0x1p-10f;  // beyond it, the probs are rougher than the square of this
  return fabsf(error) < kSmall ? __fmaf_rn(error, static_cast<float>(math::kLn2), 1.0f) : 1.0f;
}

// Multiplies the rows of a fragment.
template <int kCount>
__device__ __forceinline__ void scale_rows(float (&fragment)[kCount],
                                           const float (&factor)[kRowsPerLane]) {
#pragma unroll
  for (int r = 0; r < kCount; ++r) fragment[r] *= factor[register_row(r)];
}
// The same; where no row of the warp changes, nothing is to be done.
template <int kCount>
__device__ __forceinline__ void rescale(float (&out)[kCount], const float (&factor)[kRowsPerLane]) {
  if (__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) scale_rows(out, factor);
}

}  // namespace tilewise::cuda::tile
