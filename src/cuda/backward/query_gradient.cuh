// The places of the sums of dQ in memory, and of its rows.
#pragma once

#include "cuda/backward/query_tiles.cuh"
#include "cuda/backward/store.cuh"
#include "cuda/host/sequences.cuh"
#include "math/integer.h"

namespace tilewise::cuda::backward {

// The index in dq_sums of a thread's first number of a part of dQ of a tile, if each thread of
// kWarps warps has kCount numbers of a part. The next number lies 32 further, so that the lanes of
// a warp add to neighbouring numbers.
template <int kCount, int kParts, int kWarps>
__device__ __forceinline__ float* thread_dq_sums(const Parameters& parameters, std::int32_t number,
                                                 int part) {
  const std::uint32_t thread = threadIdx.x;
  const std::int64_t warp = (std::int64_t{number} * kParts + part) * kWarps + thread / 32;
  return parameters.dq_sums + warp * 32 * kCount + thread % 32;
}

// The number of a tile of queries among those of all heads.
__device__ __forceinline__ std::int32_t query_tile_number(const Parameters& parameters,
                                                          const tile::TileCoord& coord) {
  return first_query_tile(parameters, coord.batch, coord.head) + coord.q_tile;
}

// The destination of the columns of dQ from `column` on of a tile of queries.
__device__ __forceinline__ Destination dq_destination(const Parameters& parameters,
                                                      const tile::TileCoord& coord, int column) {
  const Problem& problem = parameters.problem;
  const Sequence sequence = sequence_at(problem, parameters.table, coord.batch);
  const std::int32_t first = coord.q_tile * parameters.shape.q_tile;
  const std::int64_t batch = problem.q_packed ? 0 : sequence.batch;
  return {problem.dq, problem.dq.offset(batch, coord.head, sequence.q_start + first) + column,
          math::min(static_cast<std::int32_t>(sequence.q_len) - first, parameters.shape.q_tile),
          static_cast<std::int32_t>(problem.head_dim) - column, static_cast<float>(problem.scale)};
}

}  // namespace tilewise::cuda::backward
