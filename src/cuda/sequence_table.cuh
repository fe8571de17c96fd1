// The table of the sequences of packed lists (problem/sequence.h), by one block.
#pragma once

#include "cuda/block_scan.cuh"
#include "cuda/sequences.cuh"
#include "math/scalar.h"

namespace tilewise::cuda {

struct Extent {
  std::int64_t start;
  std::int64_t length;
};

// Sequence `b` of a side. A start is the largest of the list up to there, as if each sequence were
// moved behind the one before it (problem/sequence.cc).
__device__ inline Extent packed_extent(const problem::IndexView& starts, std::int64_t b,
                                       std::int64_t rows, std::int64_t most, std::int64_t start) {
  const std::int64_t end = math::clamp(starts.at(b + 1), start, rows);
  return {start, math::lesser(end - start, most)};
}

// Fills table (B). All kScanThreads of a block; thread t fills rows t, t + kScanThreads, ...
//   warps (kScanWarps), shared
__device__ inline void compute_table(const Problem& problem, std::int64_t* warps, Sequence* table) {
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

}  // namespace tilewise::cuda
