// What stands around the Hopper kernels: lengths and tile numbers of packed batches before them,
// the careful path behind them.
#include "cuda/block_scan.cuh"
#include "cuda/launch.cuh"
#include "cuda/load.h"
#include "cuda/reference_row.cuh"
#include "cuda/sequences.cuh"
#include "cuda/sm90/parameters.h"
#include "cuda/tile/fragment.h"

namespace tilewise::cuda::sm90 {
namespace {

__global__ void __launch_bounds__(kScanThreads)
    prepare_kernel(const __grid_constant__ Parameters parameters, std::int32_t q_tile,
                   Lengths* lengths /* (B) */, std::int32_t* tile_starts /* (B + 1) */) {
  __shared__ std::int64_t warps[kScanWarps];
  const Problem& problem = parameters.problem;
  std::int64_t carry = 0;
  for (std::int64_t first = 0; first < problem.batch; first += kScanThreads) {
    const std::int64_t b = first + threadIdx.x;
    std::int64_t tiles = 0;
    if (b < problem.batch) {
      const Sequence sequence = sequence_at(problem, parameters.table, b);
      lengths[b] = {
          static_cast<std::int32_t>(sequence.q_start), static_cast<std::int32_t>(sequence.q_len),
          static_cast<std::int32_t>(sequence.k_start), static_cast<std::int32_t>(sequence.k_len)};
      tiles = (sequence.q_len + q_tile - 1) / q_tile;
    }
    const std::int64_t end =
        running(tiles, warps, carry, [](std::int64_t a, std::int64_t c) { return a + c; });
    if (b < problem.batch) tile_starts[b + 1] = static_cast<std::int32_t>(end);
  }
  if (threadIdx.x == 0) tile_starts[0] = 0;
}

// A block looks at the marks of kRowThreads warps at a time and redoes the rows of those that are
// set.
__global__ void __launch_bounds__(kRowThreads)
    redo_kernel(const __grid_constant__ Parameters parameters, std::int32_t q_tile) {
  __shared__ RowMemory shared;
  __shared__ bool marked[kRowThreads];
  const Problem& problem = parameters.problem;
  const std::int64_t warps = q_tile / tile::kWarpRows;  // of a tile
  const std::int64_t count =
      warps * (problem.q_packed ? parameters.packed.count() : parameters.schedule.count());
  const std::int64_t stride = std::int64_t{gridDim.x} * kRowThreads;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kRowThreads; first < count;
       first += stride) {
    const std::int64_t own = first + threadIdx.x;
    marked[threadIdx.x] = own < count && parameters.redo[own] != 0;
    if (__syncthreads_or(marked[threadIdx.x]) == 0) continue;
    for (std::int64_t i = 0; i < kRowThreads; ++i) {
      if (!marked[i]) continue;
      const std::int32_t index = static_cast<std::int32_t>((first + i) / warps);
      const Work work =
          problem.q_packed ? parameters.packed.work(index) : parameters.schedule.work(index);
      const Sequence sequence = sequence_at(problem, parameters.table, work.batch);
      const std::int64_t row =
          std::int64_t{work.q_tile} * q_tile + (first + i) % warps * tile::kWarpRows;
      const std::int64_t end = math::lesser(row + tile::kWarpRows, sequence.q_len);
      for (std::int64_t r = row; r < end; ++r) {
        compute_row({problem, sequence, work.head, r}, shared);
      }
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t load_support() {
  const cudaError_t loaded = load(redo_kernel);
  return loaded != cudaSuccess ? loaded : load(prepare_kernel);
}

cudaError_t start_redo(const Parameters& parameters, int q_tile, int blocks, cudaStream_t stream) {
  return launch(redo_kernel, {blocks, kRowThreads}, stream, parameters, q_tile);
}

cudaError_t start_prepare(const Parameters& parameters, int q_tile, cudaStream_t stream) {
  return launch(prepare_kernel, {1, kScanThreads}, stream, parameters, q_tile,
                const_cast<Lengths*>(parameters.lengths),
                const_cast<std::int32_t*>(parameters.packed.tile_starts));
}

}  // namespace tilewise::cuda::sm90
