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
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) {
    float max = fmaxf(scores[2 * which], scores[2 * which + 1]);
#pragma unroll
    for (int r = 4 + 2 * which; r < kCount; r += 4) {
      max = fmaxf(max, fmaxf(scores[r], scores[r + 1]));
    }
    math::SoftmaxState<float>& state = states.row[which];
    const float before = state.max;
    state.max = fmaxf(before, quad_maximum(max) * unit);
    const float anchor = math::anchor(state.max);
    factor[which] = ptx::exp2_approx(before - anchor);
    float sum = 0;
#pragma unroll
    for (int r = 2 * which; r < kCount; r += 4) {
      scores[r] = ptx::exp2_approx(__fmaf_rn(scores[r], unit, -anchor));
      scores[r + 1] = ptx::exp2_approx(__fmaf_rn(scores[r + 1], unit, -anchor));
      sum += scores[r] + scores[r + 1];
    }
    state.sum = __fmaf_rn(state.sum, factor[which], sum);
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
