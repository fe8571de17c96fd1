#include "cuda/oracle/reference.cuh"

#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/host/sequences.cuh"
#include "cuda/oracle/reference_row.cuh"
#include "math/integer.h"

namespace tilewise::cuda {
namespace {

// A block takes rows of the whole tensor in turn: (token or row, head, batch of dense queries).
__global__ void __launch_bounds__(kRowThreads, 1)
    reference_kernel(const __grid_constant__ Problem problem, const Sequence* table /* (B) */,
                     std::int64_t rows) {
  __shared__ RowMemory shared;
  for (std::int64_t item = blockIdx.x; item < rows; item += gridDim.x) {
    const std::int64_t place = item % problem.q_rows;
    const std::int64_t head = item / problem.q_rows % problem.heads;
    const std::int64_t b = item / problem.q_rows / problem.heads;
    const Sequence sequence =
        problem.q_packed ? owner_of(problem, table, place) : sequence_at(problem, table, b);
    if (!owns(sequence, place)) continue;
    compute_row({problem, sequence, head, place - sequence.q_start}, RowBlock{shared});
  }
}

}  // namespace

cudaError_t load_reference() { return load(reference_kernel); }

cudaError_t run_reference(const Problem& problem, const Sequence* table, cudaStream_t stream) {
  constexpr std::int64_t kMostBlocks = std::int64_t{1} << 20;
  const cudaError_t filled = fill_unowned(problem, table, stream);
  if (filled != cudaSuccess) return filled;
  const std::int64_t rows = (problem.q_packed ? 1 : problem.batch) * problem.heads * problem.q_rows;
  if (rows == 0 || problem.batch == 0) return cudaSuccess;
  return launch(reference_kernel, {math::min(rows, kMostBlocks), kRowThreads}, stream, problem,
                table, rows);
}

}  // namespace tilewise::cuda
