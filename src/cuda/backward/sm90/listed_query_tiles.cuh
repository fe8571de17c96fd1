// The tiles of queries of a head that see a block's keys through the block mask, in the order in
// which they are visited.
#pragma once

#include "cuda/backward/sm90/shared.cuh"
#include "cuda/tile/block_mask.h"

namespace tilewise::cuda::backward::sm90 {

// The number of the row of the block mask for a head and the block's keys.
__device__ __forceinline__ std::int32_t listed_row(const Parameters& parameters,
                                                   const KeyTile& tile, std::int32_t head) {
  const tile::BlockMask& mask = parameters.block_mask;
  const std::int32_t batch = static_cast<std::int32_t>(tile.sequence.batch);
  return mask.list_of(batch, head) * mask.q_tiles + tile.first / KernelConfig::kKTile;
}

// The number of tiles.
__device__ __forceinline__ std::int32_t listed_count(const Parameters& parameters,
                                                     const KeyTile& tile, std::int32_t head) {
  return parameters.block_mask.rows[listed_row(parameters, tile, head)].count;
}

// Calls visit(number of the tile, KeyTile::bits) from the first tile to the last one. The row is
// read again where it is needed: the producer has few registers.
//
// The order matters where blocks take turns (turns.cuh): under causal masks and windows, a block
// reaches a tile of queries later than the block of the next keys.
template <class Visit>
__device__ __forceinline__ void visit_listed(const Parameters& parameters, const KeyTile& tile,
                                             std::int32_t head, const Visit& visit) {
  const std::int32_t number = listed_row(parameters, tile, head);
  const tile::BlockMask& mask = parameters.block_mask;
  const tile::BlockMaskRow& row = mask.rows[number];
  std::int32_t left = row.count;
  std::int32_t word = number * mask.word_count + row.first_word;
  std::uint32_t visited = left > 0 ? mask.words[word].visited : 0;
#pragma unroll 1
  for (; left > 0; --left) {
    while (visited == 0) {
      word = number * mask.word_count + mask.words[word].next;
      visited = mask.words[word].visited;
    }
    const std::int32_t bit = __ffs(static_cast<int>(visited)) - 1;
    visited &= visited - 1;
    visit((word - number * mask.word_count) * tile::kTilesOfWord + bit,
          tile::bits_of(mask.words[word], bit));
  }
}

}  // namespace tilewise::cuda::backward::sm90
