// The kernel before a Hopper kernel: lengths and tile numbers of packed batches that are too long
// for each block to list.
#include "cuda/forward/sm90/sequences.cuh"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/ptx/pdl.cuh"

namespace tilewise::cuda::sm90 {
namespace {

__global__ void __launch_bounds__(kScanThreads)
    prepare_kernel(const __grid_constant__ Parameters parameters, std::int32_t q_tile,
                   SequenceLengths* lengths /* (B) */, std::int32_t* tile_starts /* (B + 1) */) {
  __shared__ std::int64_t warps[kScanWarps];
  ptx::launch_dependents();
  ptx::wait_for_dependency();
  const Problem& problem = parameters.problem;
  std::int64_t carry = 0;
  visit_sequences(problem, warps, [&](const Sequence& sequence) {
    const std::int64_t end = block_scan(tiles_of(sequence, q_tile), warps, carry, sum);
    if (sequence.batch >= problem.batch) return;
    lengths[sequence.batch] = lengths_of(sequence);
    tile_starts[sequence.batch + 1] = static_cast<std::int32_t>(end);
  });
  if (threadIdx.x == 0) tile_starts[0] = 0;
}

}  // namespace

cudaError_t load_support() { return load(prepare_kernel); }

cudaError_t start_prepare(const Parameters& parameters, int q_tile, cudaStream_t stream) {
  return launch_early(prepare_kernel, {1, kScanThreads}, stream, parameters, q_tile,
                      const_cast<SequenceLengths*>(parameters.scheduler.sequences.lengths),
                      const_cast<std::int32_t*>(parameters.scheduler.sequences.tile_starts));
}

}  // namespace tilewise::cuda::sm90
