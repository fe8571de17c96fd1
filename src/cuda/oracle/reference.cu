#include "cuda/oracle/reference.cuh"

#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/host/sequences.cuh"
#include "cuda/oracle/reference_row.cuh"
#include "math/integer.h"

namespace tilewise::cuda {
namespace {

// A block computes every gridDim.x-th row of the whole tensor: (token or row, head, batch).
__global__ void __launch_bounds__(kRowThreads, 1)
    reference_kernel(const __grid_constant__ Problem problem, const Sequence* table /* (B) */,
                     std::int64_t rows) {
  __shared__ RowMemory shared;
  for (std::int64_t index = blockIdx.x; index < rows; index += gridDim.x) {
    const std::int64_t q_row = index % problem.q_rows;
    const std::int64_t head = index / problem.q_rows % problem.heads;
    const std::int64_t b = index / problem.q_rows / problem.heads;
    const Sequence sequence = sequence_of_query(problem, table, b, q_row);
    if (!owns(sequence, q_row)) continue;
    compute_row(RowOf<true>{problem, sequence, head, q_row - sequence.q_start}, BlockTeam{shared});
  }
}

}  // namespace

cudaError_t load_reference() {
  const cudaError_t error = load_sequence_kernels();
  return error == cudaSuccess ? load(reference_kernel) : error;
}

cudaError_t run_reference(const Problem& problem, const Sequence* table, cudaStream_t stream) {
  constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 20;
  const cudaError_t filled = fill_unowned_rows(problem, table, stream);
  if (filled != cudaSuccess) return filled;
  const std::int64_t rows = (problem.q_packed ? 1 : problem.batch) * problem.heads * problem.q_rows;
  if (rows == 0 || problem.batch == 0) return cudaSuccess;
  return launch(reference_kernel, {math::min(rows, kMaxBlocks), kRowThreads}, stream, problem,
                table, rows);
}

}  // namespace tilewise::cuda
