// The tiles of queries of a head that see a block's keys through the block mask, in the order in
// which they are visited.
#pragma once

#include "cuda/backward/sm90/shared.cuh"
#include "cuda/tile/block_mask.h"

namespace tilewise::cuda::backward::sm90 {

// The number of the row of the block mask that a head has for the block's keys.
__device__ __forceinline__ std::int32_t listed_row(const Parameters& parameters,
                                                   const KeyTile& tile, std::int32_t head) {
  const tile::BlockMask& mask = parameters.block_mask;
  const std::int32_t batch = static_cast<std::int32_t>(tile.sequence.batch);
  return mask.list_of(batch, head) * mask.q_tiles + tile.first / KernelConfig::kKTile;
}

// How many tiles there are.
__device__ __forceinline__ std::int32_t listed_count(const Parameters& parameters,
                                                     const KeyTile& tile, std::int32_t head) {
  return parameters.block_mask.rows[listed_row(parameters, tile, head)].count;
}

// Calls visit(number of the tile, KeyTile::bits). The row is read again where it is needed: the
// producer has few registers.
template <class Visit>
__device__ __forceinline__ void visit_listed(const Parameters& parameters, const KeyTile& tile,
                                             std::int32_t head, const Visit& visit) {
  const std::int32_t number = listed_row(parameters, tile, head);
  const tile::BlockMask& mask = parameters.block_mask;
  const tile::BlockMaskRow& row = mask.rows[number];
  tile::KeyTileWalk walk;
  walk.begin(row.start_bits, row.last_word, row.last_visited);
  std::int32_t q_tile = row.start_key;
#pragma unroll 1
  for (std::int32_t left = row.count; left > 0;) {
    visit(q_tile, walk.bits());
    if (--left > 0) q_tile = walk.next(mask.words + number * mask.word_count, row.start_key);
  }
}

}  // namespace tilewise::cuda::backward::sm90
