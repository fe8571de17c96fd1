#include "cuda/host/sequences.cuh"

#include "cuda/host/launch.cuh"
#include "cuda/host/sequence_table.cuh"
#include "cuda/tile/element.cuh"
#include "math/integer.h"

namespace tilewise::cuda {
namespace {

__global__ void __launch_bounds__(kScanThreads)
    table_kernel(const __grid_constant__ Problem problem, Sequence* table /* (B) */) {
  __shared__ std::int64_t warps[kScanWarps];
  compute_table(problem, warps, table);
}

// A warp handles one token at a time. Tokens of no sequence get out = 0 and lse = -inf.
__global__ void unowned_kernel(const __grid_constant__ Problem problem,
                               const Sequence* table /* (B) */) {
  const std::int64_t warps = std::int64_t{gridDim.x} * (blockDim.x / 32);
  const std::int64_t lane = threadIdx.x % 32;
  const double minus_infinity = -math::Limits<double>::kInfinity;
  for (std::int64_t row = std::int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
       row < problem.q_rows; row += warps) {
    if (problem.batch > 0 && owns(owner_of(problem, table, row), row)) continue;
    for (std::int64_t h = 0; h < problem.heads; ++h) {
      for (std::int64_t c = lane; c < problem.value_dim; c += 32)
        write_element(problem.out, problem.out.offset(0, h, row, c), 0);
      if (problem.lse.present() && lane == 0)
        write_element(problem.lse, problem.lse.offset(0, h, row), minus_infinity);
    }
  }
}

}  // namespace

cudaError_t fill_table(const Problem& problem, Sequence* table, cudaStream_t stream) {
  if (problem.batch == 0) return cudaSuccess;
  return launch(table_kernel, {1, kScanThreads}, stream, problem, table);
}

cudaError_t fill_unowned_rows(const Problem& problem, const Sequence* table, cudaStream_t stream) {
  constexpr int kRowsPerBlock = 8;
  constexpr std::int64_t kMaxBlocks = 1 << 16;
  if (!problem.q_packed || problem.q_rows == 0) return cudaSuccess;
  const std::int64_t blocks = math::ceil_div(problem.q_rows, kRowsPerBlock);
  return launch(unowned_kernel, {math::min(blocks, kMaxBlocks), 32 * kRowsPerBlock}, stream,
                problem, table);
}

}  // namespace tilewise::cuda
