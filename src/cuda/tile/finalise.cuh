// The end of a tile: rows are closed.
#pragma once

#include "cuda/tile/softmax.cuh"

namespace tilewise::cuda::tile {

// math::finalise() in float, of a state in units of log 2. The sink joins as the state (sink, 1).
__device__ __forceinline__ math::Finalised<float> finalise_row(math::SoftmaxState<float> state,
                                                               float sink) {
  const float minus_infinity = -math::Limits<float>::kInfinity;
  const float scale_log2 = static_cast<float>(math::kLn2);  // of lse
  if (sink != minus_infinity) {
    const math::Merged<float> merged = math::merge(
        {state.max, state.sum}, {sink / scale_log2, 1.0f}, math::ExponentUnit<float>(1.0f));
    return {merged.factor_a / merged.state.sum,
            __fmaf_rn(math::log2(merged.state.sum), scale_log2, merged.state.max * scale_log2)};
  }
  if (state.max == minus_infinity) return {0, minus_infinity};
  return {1 / state.sum, __fmaf_rn(math::log2(state.sum), scale_log2, state.max * scale_log2)};
}

// Whether the fast path could not do a row: something is not finite, or a row that saw keys has no
// prob.
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
