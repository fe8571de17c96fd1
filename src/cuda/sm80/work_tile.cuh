// Which tile of queries is a block's, and where its rows lie.
#pragma once

#include "cuda/host/sequences.cuh"
#include "cuda/sm80/shared.cuh"
#include "cuda/tile/fragment.h"
#include "math/integer.h"

namespace tilewise::cuda::sm80 {

template <class Element>
__device__ __forceinline__ RowsOf<Element> rows_of(const problem::View& view, std::int64_t batch,
                                                   std::int64_t head, std::int64_t start,
                                                   std::int64_t count, std::int64_t columns,
                                                   bool wide) {
  return {static_cast<const Element*>(view.data) + view.offset(batch, head, start), view.row,
          static_cast<std::int32_t>(count), static_cast<std::int32_t>(columns), wide};
}

// Describes a tile of q_tile queries, all but its index.
template <class Element>
__device__ __forceinline__ void describe_tile(const Parameters& parameters, const TileCoord& work,
                                              std::int32_t q_tile, TileOf<Element>& tile) {
  const Problem& problem = parameters.problem;
  const Sequence sequence = sequence_at(problem, parameters.table, work.batch);
  tile.head = work.head;
  tile.first = work.q_tile * q_tile;
  tile.last = math::min(tile.first + q_tile, static_cast<std::int32_t>(sequence.q_len)) - 1;
  tile.sequence = sequence;
  const std::int64_t q_batch = problem.q_packed ? 0 : sequence.batch;
  const std::int64_t k_batch = problem.k_packed ? 0 : sequence.batch;
  const std::int64_t kv_head = work.head / static_cast<std::int32_t>(problem.group);
  tile.q = rows_of<Element>(problem.q, q_batch, work.head, sequence.q_start, sequence.q_len,
                            problem.head_dim, parameters.wide.q);
  tile.k = rows_of<Element>(problem.k, k_batch, kv_head, sequence.k_start, sequence.k_len,
                            problem.head_dim, parameters.wide.k);
  tile.v = rows_of<Element>(problem.v, k_batch, kv_head, sequence.k_start, sequence.k_len,
                            problem.value_dim, parameters.wide.v);
}

// Finds and describes the work of number `index`.
template <class Element>
__device__ __forceinline__ void find_tile(const Parameters& parameters, std::int32_t index,
                                          std::int32_t q_tile, TileOf<Element>& tile) {
  tile.index = index;
  const TileCoord work = parameters.problem.q_packed ? parameters.packed.tile_coord(tile.index)
                                                     : parameters.schedule.tile_coord(tile.index);
  describe_tile(parameters, work, q_tile, tile);
}

// The warp's first row, of the tile.
template <KernelConfig kConfig>
__device__ __forceinline__ int warp_row() {
  const std::uint32_t thread = kConfig.paired ? ptx::opaque(threadIdx.x) : threadIdx.x;
  return static_cast<int>(thread) / (32 * kConfig.column_parts()) * 16 * kConfig.row_parts;
}

// The warp's part of the columns of out, and of the keys of the scores; found again each time, the
// loops have no register for it.
template <KernelConfig kConfig>
__device__ __forceinline__ int column_part() {
  if constexpr (!kConfig.paired) return 0;
  return static_cast<int>(ptx::opaque(threadIdx.x)) / 32 % 2;
}

// The lane's first row of a part, of the sequence.
template <KernelConfig kConfig>
__device__ __forceinline__ std::int32_t lane_row(const Tile& tile, int part) {
  return tile.first + warp_row<kConfig>() + part * 16 + tile::lane_row(threadIdx.x % 32, 0);
}

}  // namespace tilewise::cuda::sm80
