// The epilogue of a tile: finalises its rows and stores them.
#pragma once

#include "cuda/forward/fp32/gemm.cuh"
#include "cuda/forward/fp32/layout.h"
#include "cuda/forward/fp32/parameters.h"
#include "cuda/forward/fp32/shared.cuh"
#include "cuda/ptx/global_store.cuh"
#include "math/softmax_state.h"

namespace tilewise::cuda::fp32 {

template <KernelConfig kConfig>
class Epilogue {
 public:
  static constexpr int kColumns = kConfig.thread_columns();
  static constexpr int kRuns = kColumns / kVector;
  using State = math::SoftmaxState<float>;

  // `out` and `states` are those of the lane's rows.
  __device__ __forceinline__ Epilogue(const Parameters& parameters, Shared<kConfig>& shared,
                                      float (&out)[kThreadRows][kColumns],
                                      State (&states)[kThreadRows])
      : parameters_(parameters), shared_(shared), tile_(shared.tile), out_(out), states_(states) {}

  // Reduces the row sums. Returns whether a row of this lane has a finite sum and a number of out
  // that is not finite: a non-finite V, or a sum that overflowed. A row whose sum is NaN is right.
  __device__ __forceinline__ bool has_non_finite_out() {
    bool found = false;
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      float& sum = states_[i].sum;
#pragma unroll
      for (int step = 1; step < kAcross; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
      float total = 0;
#pragma unroll
      for (const float x : out_[i]) total += fabsf(x);
      found |= !(total < HUGE_VALF) && sum < HUGE_VALF;
    }
    return found;
  }

  // Comes after has_non_finite_out().
  __device__ __forceinline__ void finalise_and_store() {
    float scales[kThreadRows];
    finalise_rows(scales);
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      if (tile_.first + warp_row() + lane_row(threadIdx.x % 32, i) <= tile_.last)
        store(i, scales[i]);
    }
  }

 private:
  // Finalises the rows and writes their lse. The lanes across have the same rows: each finalises
  // one of them. The arithmetic is double, which math::finalise() uses for a sink in any case.
  __device__ __forceinline__ void finalise_rows(float (&scales)[kThreadRows]) {
    const Problem& problem = parameters_.problem;
    const int lane = threadIdx.x % 32;
    const int own = lane_across(lane) % kThreadRows;
    State state = states_[0];
#pragma unroll
    for (int i = 1; i < kThreadRows; ++i) {
      if (own == i) state = states_[i];
    }
    double sink = -math::Limits<double>::kInfinity;
    if (problem.sink.present()) {
      sink = static_cast<const float*>(problem.sink.data)[problem.sink.offset(0, tile_.head, 0)];
    }
    // The exponents were taken against this rounded product, except in huge rows, whose lse is
    // rounded more than that. A row whose scores are all NaN has no max; its sum makes it NaN.
    const float anchor = __fmul_rn(state.max, parameters_.scale_log2);
    const double max = state.sum == state.sum ? static_cast<double>(anchor) * math::kLn2 : 0;
    const double shift = math::power_of_two(static_cast<double>(shared_.prob_shift));
    const math::Finalised<double> finalised =
        math::finalise<double>({max, state.sum * shift}, sink);
    const float scale = static_cast<float>(finalised.scale * shift);
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      scales[i] = __shfl_sync(~0u, scale, lane / kAcross * kAcross + i);
    }
    const std::int32_t row = tile_.first + warp_row() + lane_row(lane, own);
    if (!problem.lse.present() || row > tile_.last || lane_across(lane) >= kThreadRows) return;
    static_cast<float*>(problem.lse.data)[problem.lse.offset(
        out_batch(), tile_.head, tile_.sequence.q_start + row)] = static_cast<float>(finalised.lse);
  }

  __device__ __forceinline__ std::int64_t out_batch() const {
    return parameters_.problem.q_packed ? 0 : tile_.sequence.batch;
  }

  // Stores row i of the lane. Half a warp writes 256 bytes at a time.
  __device__ __forceinline__ void store(int i, float scale) {
    const problem::View& view = parameters_.problem.out;
    const int lane = threadIdx.x % 32;
    const std::int64_t row = tile_.sequence.q_start + tile_.first + warp_row() + lane_row(lane, i);
    float* const to = static_cast<float*>(view.data) + view.offset(out_batch(), tile_.head, row);
    const std::int32_t columns = static_cast<std::int32_t>(parameters_.problem.value_dim);
#pragma unroll
    for (int m = 0; m < kRuns; ++m) {
      const int column = lane_run(lane, m);
      const float* const run = &out_[i][m * kVector];
      const float4 four =
          make_float4(run[0] * scale, run[1] * scale, run[2] * scale, run[3] * scale);
      if (parameters_.aligned16.out) {
        if (column < columns) ptx::st_global_v4(to + column, four);
        continue;
      }
      if (column < columns) to[column] = four.x;
      if (column + 1 < columns) to[column + 1] = four.y;
      if (column + 2 < columns) to[column + 2] = four.z;
      if (column + 3 < columns) to[column + 3] = four.w;
    }
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  const WorkTile& tile_;
  float (&out_)[kThreadRows][kColumns];
  State (&states_)[kThreadRows];
};

}  // namespace tilewise::cuda::fp32
