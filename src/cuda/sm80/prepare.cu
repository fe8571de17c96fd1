// The kernels that run before the forward kernel: tile numbers of packed batches, bands of slices.
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

__global__ void bands_kernel(const __grid_constant__ Parameters parameters,
                             tile::Band* bands /* (slices) */) {
  const Problem& problem = parameters.problem;
  const std::int64_t s = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (s >= problem.slices.count) return;
  std::int64_t slice[5];
  for (int c = 0; c < 5; ++c) slice[c] = problem.slices.at(s, c);
  // A head that does not exist becomes one that no tile has.
  const std::int64_t head = problem.slices.columns == 6 ? problem.slices.at(s, 5) : -1;
  bands[s] =
      tile::narrow_band(math::slice_band(slice, problem.q_rows, problem.k_rows, problem.k_rows),
                        math::clamp(head, -2, problem.heads));
}

}  // namespace

cudaError_t load_common_kernels() {
  cudaError_t error = load_sequence_kernels();
  if (error == cudaSuccess) error = load(tile_starts_kernel);
  return error == cudaSuccess ? load(bands_kernel) : error;
}

cudaError_t start_tile_starts(const Parameters& parameters, Side side, int tile,
                              const std::int32_t* tile_starts, cudaStream_t stream) {
  return launch(tile_starts_kernel, {1, kScanThreads}, stream, parameters, side, tile,
                const_cast<std::int32_t*>(tile_starts));
}

cudaError_t start_bands(const Parameters& parameters, cudaStream_t stream) {
  constexpr int kThreads = 128;
  const std::int64_t blocks = math::ceil_div(parameters.problem.slices.count, kThreads);
  if (blocks == 0) return cudaSuccess;
  return launch(bands_kernel, {blocks, kThreads}, stream, parameters,
                const_cast<tile::Band*>(parameters.bands));
}

}  // namespace tilewise::cuda::sm80
