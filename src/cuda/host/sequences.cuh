// The sequences of a problem as device code sees them: problem/sequence.h, whose host functions
// read the same lists one after the other.
#pragma once

#include <cuda_runtime_api.h>

#include "math/integer.h"
#include "problem/sequence.h"

namespace tilewise::cuda {

using problem::Problem;
using problem::Sequence;

// A table is needed where starts are given: each depends on all before it.
inline bool has_table(const Problem& problem) {
  return problem.cu_seqlens_q.present() || problem.cu_seqlens_k.present();
}
inline std::int64_t table_bytes(const Problem& problem) {
  return has_table(problem) ? problem.batch * static_cast<std::int64_t>(sizeof(Sequence)) : 0;
}

// Fills table (B) on the stream; table_bytes(problem) of device memory.
cudaError_t fill_table(const Problem& problem, Sequence* table, cudaStream_t stream);

// Rows of packed queries that belong to no sequence: out = 0, lse = -inf. Does nothing for dense
// queries.
cudaError_t fill_unowned(const Problem& problem, const Sequence* table, cudaStream_t stream);

// Sequence `b` given the extents of its sides: cut by seqused_k, with its diagonal.
__device__ __forceinline__ Sequence close_sequence(const Problem& problem, Sequence sequence) {
  if (problem.seqused_k.present()) {
    sequence.k_len = math::clamp(problem.seqused_k.at(sequence.batch), 0, sequence.k_len);
  }
  sequence.diagonal = problem.top_left ? 0 : sequence.k_len - sequence.q_len;
  return sequence;
}

// Sequence `b`; `table` is nullptr where there is none.
__device__ __forceinline__ Sequence sequence_at(const Problem& problem, const Sequence* table,
                                                std::int64_t b) {
  if (table != nullptr) return table[b];
  return close_sequence(problem, {b, 0, problem.q_rows, 0, problem.k_rows, 0});
}

// The sequence that may own token `row` of packed queries: the last one that starts at or before
// it; the first one if none does. Those of no length share their start with the one behind them.
__device__ __forceinline__ Sequence owner_of(const Problem& problem, const Sequence* table,
                                             std::int64_t row) {
  if (table == nullptr) return sequence_at(problem, nullptr, 0);
  std::int64_t first = 0;
  std::int64_t last = problem.batch - 1;
  while (first < last) {
    const std::int64_t middle = (first + last + 1) / 2;
    if (table[middle].q_start <= row) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  return table[first];
}

__device__ __forceinline__ bool owns(const Sequence& sequence, std::int64_t row) {
  return row >= sequence.q_start && row < sequence.q_start + sequence.q_len;
}

}  // namespace tilewise::cuda
