// Finalises rows: math::finalise() in float, for states whose max is a score times log2(e).
#pragma once

#include "cuda/ptx/arithmetic.cuh"
#include "cuda/tile/softmax.cuh"

namespace tilewise::cuda::tile {

// Returns the factor of out and the LSE of a row, exact to the rounding of fp32. The sink joins as
// the state (sink, 1); -inf: the row has none.
__device__ __forceinline__ math::Finalised<float> finalise_row(math::SoftmaxState<float> state,
                                                               float sink) {
  const float minus_infinity = -math::Limits<float>::kInfinity;
  const float ln2 = static_cast<float>(math::kLn2);
  if (sink != minus_infinity) {
    const math::Merged<float> merged =
        math::merge({state.max, state.sum}, {sink / ln2, 1.0f}, math::ScaleLog2<float>(1.0f));
    return {merged.factor_a / merged.state.sum,
            __fmaf_rn(math::log2(merged.state.sum), ln2, merged.state.max * ln2)};
  }
  if (state.max == minus_infinity) return {0, minus_infinity};
  return {1 / state.sum, __fmaf_rn(math::log2(state.sum), ln2, state.max * ln2)};
}

// finalise_row() of a row without a sink, with the GPU's approximate logarithm and reciprocal and
// without a branch, for 16-bit outputs. A row whose scores are all NaN has no max, but a sum.
__device__ __forceinline__ math::Finalised<float> finalise_approx(
    const math::SoftmaxState<float>& state, float ln2) {
  const float minus_infinity = -math::Limits<float>::kInfinity;
  const bool none = state.max == minus_infinity;
  const float lse = __fmaf_rn(ptx::log2_approx(state.sum), ln2, state.max * ln2);
  return {none ? state.sum : ptx::reciprocal_approx(state.sum),
          none ? minus_infinity + state.sum : lse};
}
// finalise_approx() of a row with a sink, which joins as the state (sink, 1).
__device__ __forceinline__ math::Finalised<float> finalise_approx(
    const math::SoftmaxState<float>& state, float sink, float ln2) {
  const math::Merged<float> merged =
      math::merge({state.max, state.sum}, {sink / ln2, 1.0f}, math::ScaleLog2<float>(1.0f));
  return {merged.factor_a * ptx::reciprocal_approx(merged.state.sum),
          __fmaf_rn(ptx::log2_approx(merged.state.sum), ln2, merged.state.max * ln2)};
}

// Says whether row `which` of the fragment needs the slow path: one of its results is not finite,
// or the row saw keys and its probs add up to 0.
template <int kOut>
__device__ __forceinline__ bool is_non_finite(const float (&out)[kOut], int which, float scale,
                                              const math::SoftmaxState<float>& state) {
  float sum =
      state.sum == 0 && state.max != -math::Limits<float>::kInfinity ? HUGE_VALF : state.sum;
#pragma unroll
  for (int r = 0; r < kOut; ++r) {
    if (register_row(r) == which) sum += fabsf(out[r] * scale);
  }
  return !(sum - sum == 0);
}

}  // namespace tilewise::cuda::tile
