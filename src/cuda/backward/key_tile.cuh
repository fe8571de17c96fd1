// Finds the tile of keys of a block, and where its gradients go.
#pragma once

#include "cuda/backward/parameters.h"
#include "cuda/backward/store.cuh"
#include "cuda/host/sequences.cuh"
#include "cuda/sm80/shared.cuh"
#include "math/integer.h"

namespace tilewise::cuda::backward {

// The tile of keys of a block, and the head whose queries it visits.
struct KeyTile : cuda::sm80::HeadTile {
  std::int32_t kv_head;
  std::int32_t first_query_tile;  // the number of the head's first tile of queries
};

// Sets the tile of keys of a block. The blocks of a head start in the order of their keys. Under a
// causal mask the first keys have the most queries, so that the longest blocks start first. If
// blocks take turns (turns.cuh), they start in the order of their turns instead. A block mask says
// which blocks are the longest.
template <bool kBlockMask = false>
__device__ __forceinline__ void load_key_tile(const Parameters& parameters, std::int32_t index,
                                              int k_tile, KeyTile& tile) {
  const Problem& problem = parameters.problem;
  const tile::TileCoord work = problem.k_packed ? parameters.key_packed.tile_coord(index)
                                                : parameters.key_schedule.tile_coord(index);
  const Sequence sequence = sequence_at(problem, parameters.table, work.batch);
  const std::int64_t rows = problem.k_packed ? sequence.k_len : problem.k_rows;
  const std::int32_t tiles = static_cast<std::int32_t>(math::ceil_div(rows, k_tile));
  const bool descending =
      problem.k_packed ? parameters.key_packed.longest_first : parameters.key_schedule.swizzle > 0;
  const bool last_turns_first = kBlockMask || problem.window_right >= 0;
  const bool from_last = descending && (parameters.turns == nullptr || !last_turns_first);
  std::int32_t key_tile = from_last ? tiles - 1 - work.q_tile : work.q_tile;
  if constexpr (kBlockMask) {
    const tile::BlockMask& mask = parameters.block_mask;
    const std::int32_t head = work.head * static_cast<std::int32_t>(problem.group);
    if (parameters.turns == nullptr)
      key_tile = mask.order[mask.list_of(work.batch, head) * mask.q_tiles + key_tile].q_tile;
  }
  tile.kv_head = work.head;
  tile.first = key_tile * k_tile;
  tile.sequence = sequence;
}

// The destination of the rows of dK or dV (columns) of a tile of keys. Keys of a dense tensor after
// the sequence's end (seqused_k) have gradients of 0.
__device__ __forceinline__ Destination key_destination(const Parameters& parameters,
                                                       const KeyTile& tile, int k_tile,
                                                       const problem::View& view,
                                                       std::int64_t columns, double scale) {
  const Problem& problem = parameters.problem;
  const Sequence& sequence = tile.sequence;
  const std::int64_t batch = problem.k_packed ? 0 : sequence.batch;
  const std::int32_t length =
      static_cast<std::int32_t>(problem.k_packed ? sequence.k_len : problem.k_rows);
  return {view, view.offset(batch, tile.kv_head, sequence.k_start + tile.first),
          math::min(length - tile.first, k_tile), static_cast<std::int32_t>(columns),
          static_cast<float>(scale)};
}

}  // namespace tilewise::cuda::backward
