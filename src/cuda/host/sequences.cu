#include "cuda/host/sequences.cuh"

#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "cuda/host/sequence_table.cuh"
#include "cuda/tile/element.cuh"
#include "math/integer.h"

namespace tilewise::cuda {
namespace {

__global__ void __launch_bounds__(kScanThreads)
    table_kernel(const __grid_constant__ Problem problem, Diagonals diagonals,
                 Sequence* table /* (B) */) {
  __shared__ std::int64_t warps[kScanWarps];
  compute_table(problem, diagonals, warps, table);
}

// Writes a number to `width` columns of a row of all heads, with a warp. Absent tensors are left.
__device__ void fill_row(const problem::View& view, std::int64_t b, std::int64_t row,
                         std::int64_t heads, std::int64_t width, double value) {
  if (!view.present()) return;
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t c = threadIdx.x % 32; c < width; c += 32)
      write_element(view, view.offset(b, h, row, c), value);
  }
}

// A warp handles one row of queries at a time; there are `rows` of all batches.
__global__ void unowned_queries_kernel(const __grid_constant__ Problem problem,
                                       const Sequence* table /* (B) */, std::int64_t rows) {
  const std::int64_t warps = std::int64_t{gridDim.x} * (blockDim.x / 32);
  for (std::int64_t index = std::int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
       index < rows; index += warps) {
    const std::int64_t b = index / problem.q_rows;
    const std::int64_t row = index % problem.q_rows;
    if (problem.batch > 0 && owns(sequence_of_query(problem, table, b, row), row)) continue;
    if (problem.operation == problem::Operation::kBackward) {
      fill_row(problem.dq, b, row, problem.heads, problem.head_dim, 0);
    } else {
      fill_row(problem.out, b, row, problem.heads, problem.value_dim, 0);
      fill_row(problem.lse, b, row, problem.heads, 1, -math::Limits<double>::kInfinity);
    }
  }
}

// A warp handles one row of keys at a time; there are `rows` of all batches.
__global__ void unowned_keys_kernel(const __grid_constant__ Problem problem,
                                    const Sequence* table /* (B) */, std::int64_t rows) {
  const std::int64_t warps = std::int64_t{gridDim.x} * (blockDim.x / 32);
  for (std::int64_t index = std::int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
       index < rows; index += warps) {
    const std::int64_t b = index / problem.k_rows;
    const std::int64_t row = index % problem.k_rows;
    if (problem.batch > 0 && owns_key(sequence_of_key(problem, table, b, row), row)) continue;
    fill_row(problem.dk, b, row, problem.kv_heads, problem.head_dim, 0);
    fill_row(problem.dv, b, row, problem.kv_heads, problem.value_dim, 0);
  }
}

constexpr int kRowsPerBlock = 8;

std::int64_t blocks_for(std::int64_t rows) {
  constexpr std::int64_t kMaxBlocks = 1 << 16;
  return math::min(math::ceil_div(rows, kRowsPerBlock), kMaxBlocks);
}

}  // namespace

cudaError_t fill_table(const Problem& problem, Sequence* table, cudaStream_t stream,
                       Diagonals diagonals) {
  if (problem.batch == 0) return cudaSuccess;
  return launch(table_kernel, {1, kScanThreads}, stream, problem, diagonals, table);
}

cudaError_t load_sequence_kernels() {
  cudaError_t error = load(table_kernel);
  if (error == cudaSuccess) error = load(unowned_queries_kernel);
  return error == cudaSuccess ? load(unowned_keys_kernel) : error;
}

cudaError_t fill_unowned_rows(const Problem& problem, const Sequence* table, cudaStream_t stream) {
  constexpr int kThreads = 32 * kRowsPerBlock;
  const std::int64_t q_rows = (problem.q_packed ? 1 : problem.batch) * problem.q_rows;
  if (problem.varlen_q() && q_rows > 0) {
    const cudaError_t error = launch(unowned_queries_kernel, {blocks_for(q_rows), kThreads}, stream,
                                     problem, table, q_rows);
    if (error != cudaSuccess) return error;
  }
  if (!problem.dk.present() && !problem.dv.present()) return cudaSuccess;
  if (!problem.k_packed && !problem.seqused_k.present()) return cudaSuccess;
  const std::int64_t rows = (problem.k_packed ? 1 : problem.batch) * problem.k_rows;
  if (rows == 0) return cudaSuccess;
  return launch(unowned_keys_kernel, {blocks_for(rows), kThreads}, stream, problem, table, rows);
}

}  // namespace tilewise::cuda
