// The sequences of packed lists (problem/sequence.h), by a block or a warp.
#pragma once

#include "cuda/host/sequences.cuh"
#include "cuda/tile/block_scan.cuh"
#include "math/integer.h"
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
  return {start, math::min(end - start, most)};
}

// Where a list says that sequence `b` starts, in the tensor; 0 without a list or a sequence.
__device__ inline std::int64_t given_start(const Problem& problem, const problem::IndexView& starts,
                                           std::int64_t b, std::int64_t rows) {
  if (!starts.present() || b >= problem.batch) return 0;
  return math::clamp(starts.at(b), 0, rows);
}

// The starts so far, of which the largest counts.
__device__ inline std::int64_t later(std::int64_t a, std::int64_t b) { return math::max(a, b); }

// Sequence `b`, given where its sides start. Beyond the last one there are such of no length.
__device__ inline Sequence started_sequence(const Problem& problem, std::int64_t b,
                                            std::int64_t q_start, std::int64_t k_start) {
  if (b >= problem.batch) return {b, q_start, 0, k_start, 0, 0};
  Extent q = {0, problem.q_rows};
  Extent k = {0, problem.k_rows};
  if (problem.cu_seqlens_q.present())
    q = packed_extent(problem.cu_seqlens_q, b, problem.q_rows, problem.max_q, q_start);
  if (problem.cu_seqlens_k.present())
    k = packed_extent(problem.cu_seqlens_k, b, problem.k_rows, problem.max_k, k_start);
  return close_sequence(problem, {b, q.start, q.length, k.start, k.length, 0});
}

// Visits every sequence, in order, all kScanThreads of a block side by side and as often: beyond
// the last one, threads visit such of no length.
//   warps (kScanWarps), shared
template <class Visit>
__device__ inline void visit_sequences(const Problem& problem, std::int64_t* warps,
                                       const Visit& visit) {
  std::int64_t q_carry = 0;
  std::int64_t k_carry = 0;
  for (std::int64_t first = 0; first < problem.batch; first += kScanThreads) {
    const std::int64_t b = first + threadIdx.x;
    const std::int64_t q_start = running(
        given_start(problem, problem.cu_seqlens_q, b, problem.q_rows), warps, q_carry, later);
    const std::int64_t k_start = running(
        given_start(problem, problem.cu_seqlens_k, b, problem.k_rows), warps, k_carry, later);
    visit(started_sequence(problem, b, q_start, k_start));
  }
}

// Fills table (B). All kScanThreads of a block.
__device__ inline void compute_table(const Problem& problem, std::int64_t* warps, Sequence* table) {
  visit_sequences(problem, warps, [&](const Sequence& sequence) {
    if (sequence.batch < problem.batch) table[sequence.batch] = sequence;
  });
}

// Sequence `lane` of a batch of at most 32. Whole warps.
__device__ inline Sequence sequence_of_lane(const Problem& problem) {
  const std::int64_t b = threadIdx.x % 32;
  const std::int64_t q_start =
      running_in_warp(given_start(problem, problem.cu_seqlens_q, b, problem.q_rows), later);
  const std::int64_t k_start =
      running_in_warp(given_start(problem, problem.cu_seqlens_k, b, problem.k_rows), later);
  return started_sequence(problem, b, q_start, k_start);
}

}  // namespace tilewise::cuda
