// The combine kernel of Flash-Decoding: merges the parts of the segments that several gangs have
// computed. A block merges some rows, with one to eight warps for each.
#include "cuda/decode/kernel.h"
#include "cuda/decode/row_store.cuh"
#include "cuda/decode/work.cuh"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/ptx/pdl.cuh"

namespace tilewise::cuda::decode {
namespace {

constexpr int kWarpsOfBlock = 8;
constexpr int kThreads = 32 * kWarpsOfBlock;
constexpr int kMaxChunks = 2;  // of 128 columns

// A warp's parts of a row: the sum of their probs, and whether phi has served all of them.
struct SumAtPhi {
  float sum;
  bool served;
};

struct CombineShared {
  Segment segment;
  SearchBuffers<kThreads> search;
  float4 out[kWarpsOfBlock][kMaxChunks][32];
  SumAtPhi at_phi[kWarpsOfBlock];
};

// Finds the segment of a candidate; false if it has none that is cut into parts. If all sequences
// have the same lengths, candidate n is segment n, otherwise the border between the shares n and
// n + 1, which has the segment that it is the first to cut. With fixed parts, it is part n.
__device__ __forceinline__ bool find_segment(const Parameters& parameters, const Shares& shares,
                                             std::int32_t candidate, std::int32_t member,
                                             WorkList<kThreads>& work, Segment& segment) {
  if (parameters.fixed_parts) {
    if (candidate >= work.units()) return false;
    work.find(candidate, member, segment);
    return segment.first_unit == candidate && segment.units > 1;
  }
  if (parameters.uniform) {
    work.find(candidate * parameters.segment_units, member, segment);
    return segment.end_unit() > shares.begin(shares.gang_of(segment.first_unit) + 1);
  }
  if (candidate + 1 >= shares.gangs()) return false;
  const std::int32_t border = shares.begin(candidate + 1);
  work.find(border, member, segment);
  return segment.first_unit < border && segment.first_unit >= shares.begin(candidate);
}

// A row of a segment.
struct CombinedRow {
  const Parameters& parameters;
  Parts parts;
  std::int32_t member;
  std::int32_t row;

  __device__ __forceinline__ std::int64_t state(std::int32_t part) const {
    return state_index(parameters, parts.number(part), member, row);
  }
};

// The merged state of a row. Whole warps; the same in all lanes.
__device__ __forceinline__ RowState merge_states(const CombinedRow& of) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const RowState* const states = of.parameters.part_states;
  float max = -math::Limits<float>::kInfinity;
  for (std::int32_t part = lane; part < of.parts.count; part += 32)
    max = fmaxf(max, states[of.state(part)].max);
  for (int step = 16; step > 0; step /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, step));
  float sum = 0;
  for (std::int32_t part = lane; part < of.parts.count; part += 32) {
    const RowState own = states[of.state(part)];
    sum += own.sum * merge_factor(own.max, max, of.parameters.scale_log2);
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return {max, sum};
}

// Adds up every `step`-th part of a row, from part `first` on.
__device__ __forceinline__ void add_parts(const CombinedRow& of, float max, float scale,
                                          std::int32_t first, std::int32_t step,
                                          float4 (&sum)[kMaxChunks]) {
  const Parameters& parameters = of.parameters;
  const int column = static_cast<int>(threadIdx.x) % 32 * 4;
#pragma unroll 4
  for (std::int32_t part = first; part < of.parts.count; part += step) {
    const std::int64_t at = of.state(part);
    const RowState own = parameters.part_states[at];
    // Normalised rows are weighted by their share of the sum: no product exceeds the largest value.
    const float factor = merge_factor(own.max, max, parameters.scale_log2) * own.sum * scale;
    const float* const from = parameters.part_out + at * parameters.columns + column;
#pragma unroll
    for (int chunk = 0; chunk < kMaxChunks; ++chunk) {
      if (column + 128 * chunk < parameters.columns)
        add(sum[chunk], factor, *reinterpret_cast<const float4*>(from + 128 * chunk));
    }
  }
}

// The rows that a block merges.
struct CombineBlocks {
  std::int32_t row_warps;   // warps of a row
  std::int32_t row_blocks;  // blocks of a segment and kv head
};

// The end of a row: the warp's share of its out, normalised.
struct RowEnd {
  math::Finalised<float> finalised = {};
  float4 sum[kMaxChunks] = {};
};

// FlashDecoding++: merges parts that are all at phi (or empty) by plain sums, without maxima. Else
// returns false, and the row is to be merged with them. All threads of the block call it; warps
// without a row (has_row) add nothing.
__device__ __forceinline__ bool merge_at_phi(const CombinedRow& of, bool has_row,
                                             std::int32_t row_warps, CombineShared& shared,
                                             RowEnd& end) {
  constexpr float kMost =
      0x1p120f;  // a part that is not at phi, but has it as its max, may exceed it
  const Parameters& parameters = of.parameters;
  const std::int32_t warp = static_cast<std::int32_t>(threadIdx.x) / 32;
  const std::int32_t first = warp % row_warps;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int32_t head = query_row(parameters, shared.segment, has_row ? of.row : 0).head;
  const float phi = phi_of_head(parameters, head);
  RowEnd sums;
  float sum_of_probs = 0;
  bool served = true;
#pragma unroll 4
  for (std::int32_t part = first; has_row && part < of.parts.count; part += row_warps) {
    const std::int64_t at = of.state(part);
    const RowState own = parameters.part_states[at];
    served &= own.max == phi || own.sum == 0;
    sum_of_probs += own.sum;
    const float* const from = parameters.part_out + at * parameters.columns + 4 * lane;
#pragma unroll
    for (int chunk = 0; chunk < kMaxChunks; ++chunk) {
      if (4 * lane + 128 * chunk < parameters.columns)
        add(sums.sum[chunk], own.sum, *reinterpret_cast<const float4*>(from + 128 * chunk));
    }
  }
#pragma unroll
  for (const float4& x : sums.sum)
    served &= fabsf(x.x) + fabsf(x.y) + fabsf(x.z) + fabsf(x.w) <= kMost;
  served = !__any_sync(~0u, !served);
  if (lane == 0) shared.at_phi[warp] = {sum_of_probs, served};
  __syncthreads();
  sum_of_probs = 0;
  for (std::int32_t other = warp - first; other < warp - first + row_warps; ++other) {
    served &= shared.at_phi[other].served;
    sum_of_probs += shared.at_phi[other].sum;
  }
  if (!served) return false;
  const float max = sum_of_probs == 0 ? -math::Limits<float>::kInfinity : phi;
  end.finalised = finalise({max, sum_of_probs}, sink_of(parameters.problem, head),
                           parameters.scale_log2, false);
#pragma unroll
  for (int chunk = 0; chunk < kMaxChunks; ++chunk)
    add(end.sum[chunk], end.finalised.scale, sums.sum[chunk]);
  return true;
}

template <bool kFp16, bool kAtPhi>
__global__ void __launch_bounds__(kThreads, 4)
    combine_kernel(const __grid_constant__ Parameters parameters, CombineBlocks blocks) {
  __shared__ CombineShared shared;
  // NOTE: this kernel does not let the next one begin early. A decode kernel that began early took
  // 3 % longer (32 sequences). The lengths of the sequences are there: the kernel before has waited
  // for the kernels before it.
  WorkList<kThreads> work(parameters, shared.search);
  const Shares shares(parameters, work.units());
  const std::int32_t pair = static_cast<std::int32_t>(blockIdx.x) / blocks.row_blocks;
  const std::int32_t member = pair % parameters.gang;
  const bool found =
      find_segment(parameters, shares, pair / parameters.gang, member, work, shared.segment);
  ptx::wait_for_dependency();
  if (!found) return;
  const Segment& segment = shared.segment;
  const std::int32_t warp = static_cast<std::int32_t>(threadIdx.x) / 32;
  const std::int32_t part = warp % blocks.row_warps;
  const std::int32_t rows = kWarpsOfBlock / blocks.row_warps;  // of the block
  const std::int32_t row =
      static_cast<std::int32_t>(blockIdx.x) % blocks.row_blocks * rows + warp / blocks.row_warps;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool has_row = row < segment.rows;
  const CombinedRow own = {parameters, parts_of(parameters, shares, segment), member, row};
  RowEnd end;
  bool is_merged = false;
  if constexpr (kAtPhi) is_merged = merge_at_phi(own, has_row, blocks.row_warps, shared, end);
  if (has_row && !is_merged) {
    const RowState all = merge_states(own);
    const std::int32_t head = query_row(parameters, segment, row).head;
    end.finalised = finalise(all, sink_of(parameters.problem, head), parameters.scale_log2,
                             parameters.problem.dtype == TILEWISE_FP32);
    add_parts(own, all.max, end.finalised.scale, part, blocks.row_warps, end.sum);
  }
#pragma unroll
  for (int chunk = 0; chunk < kMaxChunks; ++chunk) shared.out[warp][chunk][lane] = end.sum[chunk];
  __syncthreads();
  if (!has_row || part != 0) return;
  if (lane == 0 && parameters.problem.lse.present())
    store_lse(parameters, segment, row, end.finalised.lse);
#pragma unroll
  for (int chunk = 0; chunk < kMaxChunks; ++chunk) {
    for (std::int32_t other = 1; other < blocks.row_warps; ++other)
      add(end.sum[chunk], 1.0f, shared.out[warp + other][chunk][lane]);
    const int column = 128 * chunk + 4 * lane;
    if (column < parameters.columns)
      store_result<kFp16>(parameters, segment, row, column, end.sum[chunk]);
  }
}

}  // namespace

cudaError_t load_combine() {
  cudaError_t error = cudaSuccess;
  for (const auto kernel : {combine_kernel<false, false>, combine_kernel<true, false>,
                            combine_kernel<false, true>, combine_kernel<true, true>}) {
    if (error == cudaSuccess) error = load(kernel);
  }
  return error;
}

cudaError_t start_combine(const Parameters& parameters, const CombineGrid& grid,
                          cudaStream_t stream) {
  // A warp has four parts at a time in flight.
  CombineBlocks blocks = {1, 0};
  while (blocks.row_warps < kWarpsOfBlock && 4 * blocks.row_warps < grid.parts)
    blocks.row_warps *= 2;
  blocks.row_blocks = math::ceil_div(grid.rows * blocks.row_warps, kWarpsOfBlock);
  const bool fp16 = parameters.problem.out.dtype == TILEWISE_FP16;
  const auto kernel = parameters.at_phi
                          ? (fp16 ? combine_kernel<true, true> : combine_kernel<false, true>)
                          : (fp16 ? combine_kernel<true, false> : combine_kernel<false, false>);
  const Grid shape = {grid.candidates * parameters.gang * blocks.row_blocks, kThreads};
  return parameters.early ? launch_early(kernel, shape, stream, parameters, blocks)
                          : launch(kernel, shape, stream, parameters, blocks);
}

}  // namespace tilewise::cuda::decode
