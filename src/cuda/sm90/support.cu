// What stands before the Hopper kernels: lengths and tile numbers of packed batches.
#include "cuda/launch.cuh"
#include "cuda/load.h"
#include "cuda/ptx/succession.cuh"
#include "cuda/sequence_table.cuh"
#include "cuda/sm90/parameters.h"

namespace tilewise::cuda::sm90 {
namespace {

__global__ void __launch_bounds__(kScanThreads)
    prepare_kernel(const __grid_constant__ Parameters parameters, std::int32_t q_tile,
                   Lengths* lengths /* (B) */, std::int32_t* tile_starts /* (B + 1) */) {
  __shared__ std::int64_t warps[kScanWarps];
  ptx::admit_next_kernel();
  const Problem& problem = parameters.problem;
  if (parameters.table != nullptr)
    compute_table(problem, warps, const_cast<Sequence*>(parameters.table));
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

}  // namespace

cudaError_t load_support() { return load(prepare_kernel); }

cudaError_t start_prepare(const Parameters& parameters, int q_tile, cudaStream_t stream) {
  return launch(prepare_kernel, {1, kScanThreads}, stream, parameters, q_tile,
                const_cast<Lengths*>(parameters.finding.lengths),
                const_cast<std::int32_t*>(parameters.finding.packed.tile_starts));
}

}  // namespace tilewise::cuda::sm90
