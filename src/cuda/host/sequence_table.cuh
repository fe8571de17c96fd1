// Finds the sequences of a packed batch (problem/sequence.h), by a block or by a warp.
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

// Returns the extent of sequence `b` on the query side or the key side. `start` is the largest
// entry of the list up to b, as if each sequence were moved to the end of the one before it
// (problem/sequence.cc).
__device__ inline Extent packed_extent(const problem::IndexView& starts, std::int64_t b,
                                       std::int64_t rows, std::int64_t most, std::int64_t start) {
  const std::int64_t end = math::clamp(starts.at(b + 1), start, rows);
  return {start, math::min(end - start, most)};
}

// Returns where the list says that sequence `b` starts, clamped to the tensor; 0 if there is no
// list or no such sequence.
__device__ inline std::int64_t listed_start(const Problem& problem,
                                            const problem::IndexView& starts, std::int64_t b,
                                            std::int64_t rows) {
  if (!starts.present() || b >= problem.batch) return 0;
  return math::clamp(starts.at(b), 0, rows);
}

// Combines starts in a scan: the largest so far counts.
__device__ inline std::int64_t latest_start(std::int64_t a, std::int64_t b) {
  return math::max(a, b);
}

// Returns sequence `b`, whose query side and key side start at q_start and k_start. After the last
// sequence of the batch it returns sequences of length 0.
__device__ inline Sequence sequence_from_starts(const Problem& problem, std::int64_t b,
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

// Calls visit(sequence) for every sequence, in order, one thread for each. All kScanThreads threads
// of the block call it equally often: after the last sequence they visit sequences of length 0.
//   warps (kScanWarps), in shared memory
template <class Visit>
__device__ inline void visit_sequences(const Problem& problem, std::int64_t* warps,
                                       const Visit& visit) {
  std::int64_t q_carry = 0;
  std::int64_t k_carry = 0;
  for (std::int64_t first = 0; first < problem.batch; first += kScanThreads) {
    const std::int64_t b = first + threadIdx.x;
    const std::int64_t q_start =
        block_scan(listed_start(problem, problem.cu_seqlens_q, b, problem.q_rows), warps, q_carry,
                   latest_start);
    const std::int64_t k_start =
        block_scan(listed_start(problem, problem.cu_seqlens_k, b, problem.k_rows), warps, k_carry,
                   latest_start);
    visit(sequence_from_starts(problem, b, q_start, k_start));
  }
}

// Fills table (B). All kScanThreads threads of a block.
__device__ inline void compute_table(const Problem& problem, Diagonals diagonals,
                                     std::int64_t* warps, Sequence* table) {
  visit_sequences(problem, warps, [&](Sequence sequence) {
    if (sequence.batch >= problem.batch) return;
    if (problem.parts.present()) {
      const std::int64_t exact = problem::diagonal_of(problem::part_of(problem, sequence.batch));
      sequence.diagonal = diagonals == Diagonals::kExact
                              ? exact
                              : math::clamp(exact, -kMostDiagonal, kMostDiagonal);
    }
    table[sequence.batch] = sequence;
  });
}

// Returns sequence number `lane` of a batch of at most 32. Whole warps.
__device__ inline Sequence sequence_of_lane(const Problem& problem) {
  const std::int64_t b = threadIdx.x % 32;
  const std::int64_t q_start =
      warp_scan(listed_start(problem, problem.cu_seqlens_q, b, problem.q_rows), latest_start);
  const std::int64_t k_start =
      warp_scan(listed_start(problem, problem.cu_seqlens_k, b, problem.k_rows), latest_start);
  return sequence_from_starts(problem, b, q_start, k_start);
}

}  // namespace tilewise::cuda
