// Merges the states of rows, finalises them, and stores results.
#pragma once

#include "cuda/decode/segment_rows.cuh"
#include "cuda/ptx/arithmetic.cuh"
#include "cuda/ptx/global_store.cuh"
#include "cuda/tile/exact_max.cuh"
#include "cuda/tile/finalise.cuh"

namespace tilewise::cuda::decode {

// The factor of a state with maximum `max` in a merged state with maximum `all`. Probs are relative
// to the anchor max * scale_log2, which is rounded; in a huge row, to the maximum itself.
__device__ __forceinline__ float merge_factor(float max, float all, float scale_log2) {
  const float anchor = __fmul_rn(math::anchor(all), scale_log2);
  const float exponent =
      tile::is_huge_exact(anchor) ? (max - all) * scale_log2 : __fmul_rn(max, scale_log2) - anchor;
  return max == all ? 1.0f : ptx::exp2_approx(exponent);
}

// A row without a visible key gets scale 0. A row whose scores are all NaN has no max; its sum
// makes it NaN. in_double: for results in fp32, whose every element has the error of the scale.
__device__ __forceinline__ math::Finalised<float> finalise(const RowState& state, float sink,
                                                           float scale_log2, bool in_double) {
  const float max = state.sum == state.sum ? __fmul_rn(state.max, scale_log2) : 0;
  if (!in_double) return tile::finalise_row({max, state.sum}, sink);
  const math::Finalised<double> result = math::finalise<double>(
      {static_cast<double>(max) * math::kLn2, static_cast<double>(state.sum)},
      static_cast<double>(sink));
  return {static_cast<float>(result.scale), static_cast<float>(result.lse)};
}

// sum += factor * numbers
__device__ __forceinline__ void add(float4& sum, float factor, const float4& numbers) {
  sum.x += factor * numbers.x;
  sum.y += factor * numbers.y;
  sum.z += factor * numbers.z;
  sum.w += factor * numbers.w;
}

__device__ __forceinline__ float sink_of(const problem::Problem& problem, std::int32_t head) {
  if (!problem.sink.present()) return -math::Limits<float>::kInfinity;
  return static_cast<const float*>(problem.sink.data)[problem.sink.offset(0, head, 0)];
}

__device__ __forceinline__ std::int64_t result_offset(const Parameters& parameters,
                                                      const Segment& segment,
                                                      const problem::View& view, int row) {
  const QueryRow own = query_row(parameters, segment, row);
  const std::int64_t batch = parameters.problem.q_packed ? 0 : segment.sequence.batch;
  return view.offset(batch, own.head, segment.sequence.q_start + own.query);
}

__device__ __forceinline__ void store_lse(const Parameters& parameters, const Segment& segment,
                                          int row, float lse) {
  const problem::View& view = parameters.problem.lse;
  static_cast<float*>(view.data)[result_offset(parameters, segment, view, row)] = lse;
}

// Stores four numbers of a row of out, from `column` on.
template <bool kFp16>
__device__ __forceinline__ void store_result(const Parameters& parameters, const Segment& segment,
                                             int row, int column, const float4& numbers) {
  const problem::View& view = parameters.problem.out;
  const std::int64_t columns = parameters.problem.value_dim;
  const std::int64_t offset = result_offset(parameters, segment, view, row) + column;
  if (view.dtype == TILEWISE_FP32) {
    float* const to = static_cast<float*>(view.data) + offset;
    if (column < columns) to[0] = numbers.x;
    if (column + 1 < columns) to[1] = numbers.y;
    if (column + 2 < columns) to[2] = numbers.z;
    if (column + 3 < columns) to[3] = numbers.w;
    return;
  }
  std::uint16_t* const to = static_cast<std::uint16_t*>(view.data) + offset;
  const std::uint32_t low = ptx::pack<kFp16>(numbers.x, numbers.y);
  const std::uint32_t high = ptx::pack<kFp16>(numbers.z, numbers.w);
  if (parameters.wide_out) {
    if (column < columns) *reinterpret_cast<uint2*>(to) = make_uint2(low, high);
    return;
  }
  if (column < columns) to[0] = static_cast<std::uint16_t>(low);
  if (column + 1 < columns) to[1] = static_cast<std::uint16_t>(low >> 16);
  if (column + 2 < columns) to[2] = static_cast<std::uint16_t>(high);
  if (column + 3 < columns) to[3] = static_cast<std::uint16_t>(high >> 16);
}

}  // namespace tilewise::cuda::decode
