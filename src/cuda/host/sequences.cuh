// The sequences of a problem in device code: the counterpart of problem/sequence.h, whose host
// functions read the same lists serially.
#pragma once

#include <cuda_runtime_api.h>

#include "math/integer.h"
#include "problem/sequence.h"

namespace tilewise::cuda {

using problem::Problem;
using problem::Sequence;

// Sequences need a table if cu_seqlens are given, since each start depends on all before it, and if
// they are parts: then the table alone holds their diagonals.
inline bool has_table(const Problem& problem) {
  return problem.cu_seqlens_q.present() || problem.cu_seqlens_k.present() ||
         problem.parts.present();
}
inline std::int64_t table_bytes(const Problem& problem) {
  return has_table(problem) ? problem.batch * static_cast<std::int64_t>(sizeof(Sequence)) : 0;
}

// The diagonals of a table. Those of 32 bits are at most kMostDiagonal away from 0. With windows
// below kMostWindowOfParts that is as good as any larger number: a row sees all keys, or none.
enum class Diagonals { k32Bits, kExact };
inline constexpr std::int64_t kMostDiagonal = (std::int64_t{1} << 30) - (1 << 10);
inline constexpr std::int64_t kMostWindowOfParts = (std::int64_t{1} << 29) - (1 << 11);

// Fills `table` (B), which is table_bytes(problem) of device memory, on the stream.
cudaError_t fill_table(const Problem& problem, Sequence* table, cudaStream_t stream,
                       Diagonals diagonals = Diagonals::k32Bits);

// Loads the kernels of the two functions; on the current device.
cudaError_t load_sequence_kernels();

// Fills the rows that belong to no sequence, as problem::fill_unowned_rows() does. Forward sets
// out = 0 and lse = -inf, backward dq = 0, in tokens of packed queries and in rows after seqused_q.
// Backward also sets dk = dv = 0 in keys that no sequence uses: tokens of packed keys, and keys
// after seqused_k. Without such rows it starts nothing.
cudaError_t fill_unowned_rows(const Problem& problem, const Sequence* table, cudaStream_t stream);

// Completes a sequence that has its starts and lengths: applies seqused_q and seqused_k, and sets
// the diagonal, which is that of a whole sequence.
__device__ __forceinline__ Sequence close_sequence(const Problem& problem, Sequence sequence) {
  if (problem.seqused_q.present()) {
    sequence.q_len = math::clamp(problem.seqused_q.at(sequence.batch), 0, sequence.q_len);
  }
  if (problem.seqused_k.present()) {
    sequence.k_len = math::clamp(problem.seqused_k.at(sequence.batch), 0, sequence.k_len);
  }
  sequence.diagonal = problem.top_left ? 0 : sequence.k_len - sequence.q_len;
  return sequence;
}

// Sequence `b`. `table` is nullptr if there is none.
__device__ __forceinline__ Sequence sequence_at(const Problem& problem, const Sequence* table,
                                                std::int64_t b) {
  if (table != nullptr) return table[b];
  return close_sequence(problem, {b, 0, problem.q_rows, 0, problem.k_rows, 0});
}

// The last of the sequences that starts at or before `row`, or the first one. An empty sequence has
// the same start as the one after it.
__device__ __forceinline__ Sequence last_at(const Problem& problem, const Sequence* table,
                                            std::int64_t Sequence::*start, std::int64_t row) {
  if (table == nullptr) return sequence_at(problem, nullptr, 0);
  std::int64_t first = 0;
  std::int64_t last = problem.batch - 1;
  while (first < last) {
    const std::int64_t middle = (first + last + 1) / 2;
    if (table[middle].*start <= row) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  return table[first];
}

// The sequence that may own token `row` of packed queries.
__device__ __forceinline__ Sequence owner_of(const Problem& problem, const Sequence* table,
                                             std::int64_t row) {
  return last_at(problem, table, &Sequence::q_start, row);
}

__device__ __forceinline__ bool owns(const Sequence& sequence, std::int64_t row) {
  return row >= sequence.q_start && row < sequence.q_start + sequence.q_len;
}

// The sequence that may own row `q_row` of queries, or row `k_row` of keys; `b` is the batch index
// of dense ones.
__device__ __forceinline__ Sequence sequence_of_query(const Problem& problem, const Sequence* table,
                                                      std::int64_t b, std::int64_t q_row) {
  return problem.q_packed ? owner_of(problem, table, q_row) : sequence_at(problem, table, b);
}
__device__ __forceinline__ Sequence sequence_of_key(const Problem& problem, const Sequence* table,
                                                    std::int64_t b, std::int64_t k_row) {
  return problem.k_packed ? last_at(problem, table, &Sequence::k_start, k_row)
                          : sequence_at(problem, table, b);
}

// Says whether a row of keys is one that the sequence uses.
__device__ __forceinline__ bool owns_key(const Sequence& sequence, std::int64_t k_row) {
  return k_row >= sequence.k_start && k_row < sequence.k_start + sequence.k_len;
}

}  // namespace tilewise::cuda
