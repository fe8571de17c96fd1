// Online softmax on a fragment of scores (tile/fragment.h): src/math's state for each of a lane's
// two rows, its exponents by the GPU's own instruction.
#pragma once

#include "cuda/ptx/number.cuh"
#include "cuda/tile/fragment.h"
#include "math/softmax_state.h"

namespace tilewise::cuda::tile {

// What a lane knows of its two rows. `max` is in units of log 2 (the score times `unit`), the same
// in the four lanes of a row; `sum` is this lane's part of the sum.
struct RowStates {
  math::SoftmaxState<float> row[kRowsPerLane];

  __device__ __forceinline__ void clear() {
    for (auto& state : row) state = math::empty_state<float>();
  }
};

__device__ __forceinline__ float quad_maximum(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// Takes a tile of scores into the states and leaves the weights exp(score - max) in their place.
// `unit` > 0 is what a unit of score is worth as an exponent of 2. factor (2): what the rows' sums
// and outputs so far are to be multiplied with.
//
// The exponent is one fused product, score * unit - max, with max rounded once: the same error for
// every weight of the row, so it cancels. Scores beyond 2^30 lose that; the row is then redone by
// the careful path (sm90/epilogue.cuh).
template <int kCount>
__device__ __forceinline__ void update(float (&scores)[kCount], RowStates& states, float unit,
                                       float (&factor)[kRowsPerLane]) {
  // Chains for each row: a warp is alone with its scheduler here, and a maximum or a sum takes four
  // cycles, in which two rows of two chains have something to do.
  constexpr int kChains = 2;
  float partial[kRowsPerLane][kChains];
#pragma unroll
  for (int r = 0; r < kCount; r += 2) {
    float& max = partial[register_row(r)][r / 4 % kChains];
    const float pair = fmaxf(scores[r], scores[r + 1]);
    max = r / 4 < kChains ? pair : fmaxf(max, pair);
  }
  float anchor[kRowsPerLane];
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) {
    math::SoftmaxState<float>& state = states.row[which];
    const float before = state.max;
    state.max = fmaxf(before, quad_maximum(fmaxf(partial[which][0], partial[which][1])) * unit);
    anchor[which] = math::anchor(state.max);
    factor[which] = ptx::exp2_approx(before - anchor[which]);
  }
#pragma unroll
  for (int r = 0; r < kCount; r += 2) {
    const int which = register_row(r);
    scores[r] = ptx::exp2_approx(__fmaf_rn(scores[r], unit, -anchor[which]));
    scores[r + 1] = ptx::exp2_approx(__fmaf_rn(scores[r + 1], unit, -anchor[which]));
    float& sum = partial[which][r / 4 % kChains];
    const float pair = scores[r] + scores[r + 1];
    sum = r / 4 < kChains ? pair : sum + pair;
  }
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) {
    math::SoftmaxState<float>& state = states.row[which];
    state.sum = __fmaf_rn(state.sum, factor[which], partial[which][0] + partial[which][1]);
  }
}

// Multiplies the rows of a fragment; where no row of the warp changes, nothing is to be done.
template <int kCount>
__device__ __forceinline__ void rescale(float (&out)[kCount], const float (&factor)[kRowsPerLane]) {
  if (!__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
  for (int r = 0; r < kCount; ++r) out[r] *= factor[register_row(r)];
}

// Weights as the left operand of a product: rounded to 16 bits, in pairs.
template <bool kFp16, int kCount>
__device__ __forceinline__ void pack(const float (&weights)[kCount],
                                     std::uint32_t (&operand)[kCount / 2]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    operand[i] = ptx::pack<kFp16>(weights[2 * i], weights[2 * i + 1]);
  }
}

}  // namespace tilewise::cuda::tile
