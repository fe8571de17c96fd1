// The combine kernel of Flash-Decoding: merges the parts of the segments that several blocks have
// computed. A block merges two rows, with four warps for each.
#include "cuda/decode/row_store.cuh"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/ptx/pdl.cuh"

namespace tilewise::cuda::decode {
namespace {

constexpr int kRowsOfBlock = 2;
constexpr int kRowWarps = 4;
constexpr int kThreads = 32 * kRowsOfBlock * kRowWarps;
constexpr int kMaxChunks = 2;  // of 128 columns

struct CombineShared {
  Segment segment;
  SearchBuffers<kThreads> search;
  float4 out[kRowsOfBlock][kRowWarps][kMaxChunks][32];
};

// Finds the segment of a block; false if the block has none. Without fixed parts, block n looks at
// the border between the shares n and n + 1, and has the segment that it is the first to cut.
__device__ bool find_segment(const Parameters& parameters, const Shares& shares,
                             std::int64_t candidate, WorkList<kThreads>& work, Segment& segment) {
  if (parameters.fixed_parts) {
    if (candidate >= shares.units) return false;
    work.find(candidate, segment);
    return segment.first_unit == candidate && segment.units > 1;
  }
  if (candidate + 1 >= shares.blocks) return false;
  const std::int64_t border = shares.begin(candidate + 1);
  work.find(border, segment);
  return segment.first_unit < border && segment.first_unit >= shares.begin(candidate);
}

// The merged state of a row. Whole warps; the same in all lanes.
__device__ RowState merge_states(const Parameters& parameters, const Parts& parts, int row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float max = -math::Limits<float>::kInfinity;
  for (std::int32_t part = lane; part < parts.count; part += 32)
    max = fmaxf(max, parameters.part_states[parts.slot(part) * parameters.q_tile + row].max);
  for (int step = 16; step > 0; step /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, step));
  float sum = 0;
  for (std::int32_t part = lane; part < parts.count; part += 32) {
    const RowState own = parameters.part_states[parts.slot(part) * parameters.q_tile + row];
    sum += own.sum * merge_factor(own.max, max, parameters.scale_log2);
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return {max, sum};
}

__device__ __forceinline__ void add(float4& sum, float factor, const float4& numbers) {
  sum.x += factor * numbers.x;
  sum.y += factor * numbers.y;
  sum.z += factor * numbers.z;
  sum.w += factor * numbers.w;
}

// Adds up every kRowWarps-th part of a row, from part `first` on.
__device__ void add_parts(const Parameters& parameters, const Parts& parts, const RowState& all,
                          float scale, int row, std::int32_t first, float4 (&sum)[kMaxChunks]) {
  const int column = static_cast<int>(threadIdx.x) % 32 * 4;
#pragma unroll 4
  for (std::int32_t part = first; part < parts.count; part += kRowWarps) {
    const std::int64_t at = parts.slot(part) * parameters.q_tile + row;
    const RowState own = parameters.part_states[at];
    // Normalised rows are weighted by their share of the sum: no product exceeds the largest value.
    const float factor = merge_factor(own.max, all.max, parameters.scale_log2) * own.sum * scale;
    const float* const from = parameters.part_out + at * parameters.columns + column;
#pragma unroll
    for (int chunk = 0; chunk < kMaxChunks; ++chunk) {
      if (column + 128 * chunk < parameters.columns)
        add(sum[chunk], factor, *reinterpret_cast<const float4*>(from + 128 * chunk));
    }
  }
}

template <bool kFp16>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const __grid_constant__ Parameters parameters, std::int32_t row_blocks) {
  __shared__ CombineShared shared;
  ptx::wait_for_dependency();
  WorkList<kThreads> work(parameters, shared.search);
  if (work.units() == 0) return;
  const Shares shares(parameters, work.units());
  if (!find_segment(parameters, shares, blockIdx.x / row_blocks, work, shared.segment)) return;
  const Segment& segment = shared.segment;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int own_row = warp / kRowWarps;
  const int row = static_cast<int>(blockIdx.x % row_blocks) * kRowsOfBlock + own_row;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  math::Finalised<float> finalised = {};
  if (row < segment.rows) {
    const Parts parts = parts_of(parameters, shares, segment);
    const RowState all = merge_states(parameters, parts, row);
    finalised = finalise(all, sink_of(parameters.problem, query_row(parameters, segment, row).head),
                         parameters.scale_log2);
    float4 sum[kMaxChunks] = {};
    add_parts(parameters, parts, all, finalised.scale, row, warp % kRowWarps, sum);
#pragma unroll
    for (int chunk = 0; chunk < kMaxChunks; ++chunk)
      shared.out[own_row][warp % kRowWarps][chunk][lane] = sum[chunk];
  }
  __syncthreads();
  if (row >= segment.rows || warp % kRowWarps != 0) return;
  if (lane == 0 && parameters.problem.lse.present())
    store_lse(parameters, segment, row, finalised.lse);
#pragma unroll
  for (int chunk = 0; chunk < kMaxChunks; ++chunk) {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int part = 0; part < kRowWarps; ++part)
      add(sum, 1.0f, shared.out[own_row][part][chunk][lane]);
    const int column = 128 * chunk + 4 * lane;
    if (column < parameters.columns) store_result<kFp16>(parameters, segment, row, column, sum);
  }
}

}  // namespace

cudaError_t load_combine() {
  const cudaError_t error = load(combine_kernel<false>);
  return error == cudaSuccess ? load(combine_kernel<true>) : error;
}

cudaError_t start_combine(const Parameters& parameters, std::int64_t candidates, std::int32_t rows,
                          cudaStream_t stream) {
  const std::int32_t row_blocks = math::ceil_div(rows, kRowsOfBlock);
  const auto kernel =
      parameters.problem.dtype == TILEWISE_FP16 ? combine_kernel<true> : combine_kernel<false>;
  const Grid grid = {candidates * row_blocks, kThreads};
  return parameters.early ? launch_early(kernel, grid, stream, parameters, row_blocks)
                          : launch(kernel, grid, stream, parameters, row_blocks);
}

}  // namespace tilewise::cuda::decode
