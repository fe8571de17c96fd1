// The sequences of a batch as the scheduler warp reads them.
#pragma once

#include "cuda/forward/sm90/parameters.h"
#include "cuda/host/sequence_table.cuh"
#include "math/integer.h"

namespace tilewise::cuda::sm90 {

__device__ inline SequenceLengths lengths_of(const Sequence& sequence) {
  return {static_cast<std::int32_t>(sequence.q_start), static_cast<std::int32_t>(sequence.q_len),
          static_cast<std::int32_t>(sequence.k_start), static_cast<std::int32_t>(sequence.k_len)};
}

__device__ inline std::int64_t tiles_of(const Sequence& sequence, std::int32_t q_tile) {
  return math::ceil_div(sequence.q_len, q_tile);
}

__device__ inline std::int64_t sum(std::int64_t a, std::int64_t b) { return a + b; }

// Lists at most kMaxListed sequences, by a warp of each block: that takes less time than to start
// after a kernel that lists them for all. NOTE: not inlined, so that blocks that list nothing do
// not fetch its code (D 64, S 512: 1 %).
__device__ __noinline__ inline void list_sequences(const Problem& problem, std::int32_t q_tile,
                                                   ListedSequences& list) {
  const Sequence sequence = sequence_of_lane(problem);
  const std::int64_t end = warp_scan(tiles_of(sequence, q_tile), sum);
  if (sequence.batch < problem.batch) {
    list.lengths[sequence.batch] = lengths_of(sequence);
    list.tile_starts[sequence.batch + 1] = static_cast<std::int32_t>(end);
  }
  if (sequence.batch == 0) list.tile_starts[0] = 0;
  __syncwarp();
}

__device__ __forceinline__ Sequences sequences_of(const SchedulerParams& scheduler,
                                                  const ListedSequences& list) {
  if (!scheduler.listed) return scheduler.sequences;
  return {list.lengths, list.tile_starts};
}

}  // namespace tilewise::cuda::sm90
