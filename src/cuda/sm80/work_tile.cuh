// The tile of queries of a block, and the rows of Q, K and V that it reads.
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
                                                   bool aligned16) {
  return {static_cast<const Element*>(view.data) + view.offset(batch, head, start), view.row,
          static_cast<std::int32_t>(count), static_cast<std::int32_t>(columns), aligned16};
}

// Fills in a work tile of q_tile queries, all but its index. GQA and MQA: `group` query heads share
// a kv head.
template <class Element>
__device__ __forceinline__ void set_work_tile(const Parameters& parameters, const TileCoord& work,
                                              std::int32_t q_tile, WorkTileOf<Element>& tile) {
  const Problem& problem = parameters.problem;
  const Sequence sequence = sequence_at(problem, parameters.table, work.batch);
  tile.head = work.head;
  tile.first = work.q_tile * q_tile;
  tile.last = math::min(tile.first + q_tile, static_cast<std::int32_t>(sequence.q_len)) - 1;
  tile.sequence = sequence;
  const std::int64_t q_batch = problem.q_packed ? 0 : sequence.batch;
  // In a paged cache the rows begin with those of page 0.
  const bool no_batch = problem.k_packed || parameters.pages.present();
  const std::int64_t k_batch = no_batch ? 0 : sequence.batch;
  const std::int64_t kv_head = work.head / static_cast<std::int32_t>(problem.group);
  tile.q = rows_of<Element>(problem.q, q_batch, work.head, sequence.q_start, sequence.q_len,
                            problem.head_dim, parameters.aligned16.q);
  tile.k = rows_of<Element>(problem.k, k_batch, kv_head, sequence.k_start, sequence.k_len,
                            problem.head_dim, parameters.aligned16.k);
  tile.v = rows_of<Element>(problem.v, k_batch, kv_head, sequence.k_start, sequence.k_len,
                            problem.value_dim, parameters.aligned16.v);
}

// Fills in the work tile of number `index`.
template <class Element>
__device__ __forceinline__ void load_work_tile(const Parameters& parameters, std::int32_t index,
                                               std::int32_t q_tile, WorkTileOf<Element>& tile) {
  tile.index = index;
  const TileCoord work = parameters.problem.varlen_q() ? parameters.packed.tile_coord(tile.index)
                                                       : parameters.schedule.tile_coord(tile.index);
  set_work_tile(parameters, work, q_tile, tile);
}

// The warp's first row in the tile. Kernels that read Q of two row blocks in each step have no
// register for it in their loop, and compute it each time.
template <KernelConfig kConfig>
__device__ __forceinline__ int warp_row() {
  constexpr bool kComputed = kConfig.row_blocks == 2 && !kConfig.q_registers;
  const std::uint32_t thread = kComputed ? ptx::opaque(threadIdx.x) : threadIdx.x;
  return static_cast<int>(thread / (32 * kConfig.pair_size())) * 16 * kConfig.row_blocks;
}

// The warp's number in its pair, which selects its half of the columns of out and of the keys of
// the scores. It is computed each time: the loops have no register for it.
template <KernelConfig kConfig>
__device__ __forceinline__ int pair_index() {
  if constexpr (!kConfig.paired) return 0;
  return static_cast<int>(ptx::opaque(threadIdx.x)) / 32 % 2;
}

// The lane's first row of a row block, in the sequence.
template <KernelConfig kConfig>
__device__ __forceinline__ std::int32_t lane_row(const WorkTile& tile, int row_block) {
  return tile.first + warp_row<kConfig>() + row_block * 16 + tile::lane_row(threadIdx.x % 32, 0);
}

}  // namespace tilewise::cuda::sm80
