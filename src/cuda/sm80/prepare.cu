// The kernel that runs before the forward kernel: tile numbers of packed batches.
#include "cuda/host/bands.h"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/host/sequences.cuh"
#include "cuda/sm80/parameters.h"
#include "cuda/tile/block_scan.cuh"
#include "math/integer.h"

namespace tilewise::cuda::sm80 {
namespace {

__global__ void __launch_bounds__(kScanThreads)
    tile_starts_kernel(const __grid_constant__ Parameters parameters, Side side, std::int32_t tile,
                       std::int32_t* tile_starts /* (B + 1) */) {
  __shared__ std::int64_t warps[kScanWarps];
  const Problem& problem = parameters.problem;
  std::int64_t carry = 0;
  for (std::int64_t first = 0; first < problem.batch; first += kScanThreads) {
    const std::int64_t b = first + threadIdx.x;
    const bool inside = b < problem.batch;
    std::int64_t rows = 0;
    if (inside) {
      const Sequence sequence = sequence_at(problem, parameters.table, b);
      rows = side == Side::kQueries ? sequence.q_len : sequence.k_len;
    }
    const std::int64_t end = block_scan(math::ceil_div(rows, tile), warps, carry,
                                        [](std::int64_t a, std::int64_t c) { return a + c; });
    if (inside) tile_starts[b + 1] = static_cast<std::int32_t>(end);
  }
  if (threadIdx.x == 0) tile_starts[0] = 0;
}

}  // namespace

cudaError_t load_common_kernels() {
  cudaError_t error = load_sequence_kernels();
  if (error == cudaSuccess) error = load(tile_starts_kernel);
  return error == cudaSuccess ? load_band_kernel() : error;
}

cudaError_t start_tile_starts(const Parameters& parameters, Side side, int tile,
                              const std::int32_t* tile_starts, cudaStream_t stream) {
  return launch(tile_starts_kernel, {1, kScanThreads}, stream, parameters, side, tile,
                const_cast<std::int32_t*>(tile_starts));
}

}  // namespace tilewise::cuda::sm80
