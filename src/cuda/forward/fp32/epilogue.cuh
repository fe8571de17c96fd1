// The epilogue of a tile: finalises its rows, stores them, and flags those that the recompute
// kernel must compute (sm80/prepare.cu).
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

  // Reduces the row sums. Returns whether a value of this lane is not finite, or a row that sees
  // keys has no prob above zero.
  __device__ __forceinline__ bool has_non_finite() {
    float total = 0;
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      float& sum = states_[i].sum;
#pragma unroll
      for (int step = 1; step < kAcross; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
      total += magnitude(i, 1);
    }
    return !(total - total == 0);
  }

  __device__ __forceinline__ void finalise_and_store() {
    float scales[kThreadRows];
    finalise_rows(scales);
    std::uint32_t flags = 0;
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      const int row = lane_row(threadIdx.x % 32, i);
      if (tile_.first + warp_row() + row > tile_.last) continue;
      store(i, scales[i]);
      if (shared_.non_finite_pass && must_recompute(i, scales[i])) flags |= 1u << row;
    }
    flags = __reduce_or_sync(~0u, flags);
    if (threadIdx.x % 32 != 0) return;
    parameters_.flags[std::int64_t{tile_.index} * kConfig.warps + threadIdx.x / 32] =
        static_cast<std::uint16_t>(flags);
  }

 private:
  // A sum that is finite only if all of the row is.
  __device__ __forceinline__ float magnitude(int i, float scale) const {
    const bool sees_keys = states_[i].max != -math::Limits<float>::kInfinity;
    float sum = states_[i].sum == 0 && sees_keys ? HUGE_VALF : states_[i].sum;
#pragma unroll
    for (const float x : out_[i]) sum += fabsf(x * scale);
    return sum;
  }

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
    // The exponents were taken against this rounded product.
    const double max =
        static_cast<double>(__fmul_rn(state.max, parameters_.scale_log2)) * math::kLn2;
    const math::Finalised<double> finalised = math::finalise<double>({max, state.sum}, sink);
    const float scale = static_cast<float>(finalised.scale);
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

  // Whether the recompute kernel must compute row i of the lane; known after a non-finite pass.
  __device__ __forceinline__ bool must_recompute(int i, float scale) const {
    const float sum = magnitude(i, scale);
    return (shared_.sees_non_finite[threadIdx.x] >> i & 1) != 0 ||
           shared_.non_finite_row[warp_row() + lane_row(threadIdx.x % 32, i)] != 0 ||
           !(sum - sum == 0);
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  const WorkTile& tile_;
  float (&out_)[kThreadRows][kColumns];
  State (&states_)[kThreadRows];
};

}  // namespace tilewise::cuda::fp32
