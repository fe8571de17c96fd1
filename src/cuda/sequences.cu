#include "cuda/sequences.cuh"

#include "cuda/block_scan.cuh"
#include "cuda/element.cuh"
#include "cuda/launch.cuh"
#include "math/scalar.h"

namespace tilewise::cuda {
namespace {

struct Extent {
  std::int64_t start;
  std::int64_t length;
};

// Sequence `b` of a side. A start is the largest of the list up to there, as if each sequence were
// moved behind the one before it (problem/sequence.cc).
__device__ Extent packed_extent(const problem::IndexView& starts, std::int64_t b, std::int64_t rows,
                                std::int64_t most, std::int64_t start) {
  const std::int64_t end = math::clamp(starts.at(b + 1), start, rows);
  return {start, math::lesser(end - start, most)};
}

__global__ void __launch_bounds__(kScanThreads)
    table_kernel(const __grid_constant__ Problem problem, Sequence* table /* (B) */) {
  __shared__ std::int64_t warps[kScanWarps];
  std::int64_t q_carry = 0;
  std::int64_t k_carry = 0;
  for (std::int64_t first = 0; first < problem.batch; first += kScanThreads) {
    const std::int64_t b = first + threadIdx.x;
    const bool inside = b < problem.batch;
    const bool q_listed = problem.cu_seqlens_q.present();
    const bool k_listed = problem.cu_seqlens_k.present();
    const std::int64_t q_given =
        inside && q_listed ? math::clamp(problem.cu_seqlens_q.at(b), 0, problem.q_rows) : 0;
    const std::int64_t k_given =
        inside && k_listed ? math::clamp(problem.cu_seqlens_k.at(b), 0, problem.k_rows) : 0;
    const auto later = [](std::int64_t a, std::int64_t c) { return math::greater(a, c); };
    const std::int64_t q_start = running(q_given, warps, q_carry, later);
    const std::int64_t k_start = running(k_given, warps, k_carry, later);
    if (!inside) continue;
    Extent q = {0, problem.q_rows};
    Extent k = {0, problem.k_rows};
    if (q_listed)
      q = packed_extent(problem.cu_seqlens_q, b, problem.q_rows, problem.max_q, q_start);
    if (k_listed)
      k = packed_extent(problem.cu_seqlens_k, b, problem.k_rows, problem.max_k, k_start);
    table[b] = close_sequence(problem, {b, q.start, q.length, k.start, k.length, 0});
  }
}

// One warp looks at one token.
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

cudaError_t fill_unowned(const Problem& problem, const Sequence* table, cudaStream_t stream) {
  constexpr int kRowsPerBlock = 8;
  constexpr std::int64_t kMostBlocks = 1 << 16;
  if (!problem.q_packed || problem.q_rows == 0) return cudaSuccess;
  const std::int64_t blocks = (problem.q_rows + kRowsPerBlock - 1) / kRowsPerBlock;
  return launch(unowned_kernel, {math::lesser(blocks, kMostBlocks), 32 * kRowsPerBlock}, stream,
                problem, table);
}

}  // namespace tilewise::cuda
