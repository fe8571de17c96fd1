// Finds the tile of keys of a block.
#pragma once

#include "cuda/backward/sm80/shared.cuh"
#include "cuda/sm80/work_tile.cuh"

namespace tilewise::cuda::backward::sm80 {

// Sets a tile of keys: its sequence and kv head, and the rows of K and V.
__device__ __forceinline__ void set_key_tile(const Parameters& parameters, const Sequence& sequence,
                                             std::int32_t kv_head, std::int32_t first,
                                             KeyTile& tile) {
  const Problem& problem = parameters.problem;
  tile.kv_head = kv_head;
  tile.first = first;
  tile.sequence = sequence;
  const std::int64_t batch = problem.k_packed ? 0 : sequence.batch;
  tile.k =
      cuda::sm80::rows_of<std::uint16_t>(problem.k, batch, kv_head, sequence.k_start,
                                         sequence.k_len, problem.head_dim, parameters.aligned16.k);
  tile.v =
      cuda::sm80::rows_of<std::uint16_t>(problem.v, batch, kv_head, sequence.k_start,
                                         sequence.k_len, problem.value_dim, parameters.aligned16.v);
}

// Sets the tile of keys of a block. Under a causal mask the first keys have the most queries, and
// their blocks start first. In every case the blocks of a head start in the order of their keys.
__device__ __forceinline__ void load_key_tile(const Parameters& parameters, std::int32_t index,
                                              int k_tile, KeyTile& tile) {
  const Problem& problem = parameters.problem;
  const tile::TileCoord work = problem.k_packed ? parameters.key_packed.tile_coord(index)
                                                : parameters.key_schedule.tile_coord(index);
  const Sequence sequence = sequence_at(problem, parameters.table, work.batch);
  const std::int64_t rows = problem.k_packed ? sequence.k_len : problem.k_rows;
  const std::int32_t tiles = static_cast<std::int32_t>(math::ceil_div(rows, k_tile));
  const bool from_last =
      problem.k_packed ? parameters.key_packed.longest_first : parameters.key_schedule.swizzle > 0;
  const std::int32_t key_tile = from_last ? tiles - 1 - work.q_tile : work.q_tile;
  set_key_tile(parameters, sequence, work.head, key_tile * k_tile, tile);
}

}  // namespace tilewise::cuda::backward::sm80
