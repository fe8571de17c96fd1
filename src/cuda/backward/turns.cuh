// A fixed order of the sums of dQ, for deterministic gradients.
//
// The blocks of a head add to dQ of a tile of queries in the order of their keys. turns[tile] is
// the number of blocks that have added to it. Blocks start in the same order (key_tile.cuh), so
// that each waits only for blocks that run.
#pragma once

#include "cuda/backward/key_tile.cuh"
#include "cuda/backward/query_mask.cuh"
#include "cuda/ptx/memory_order.cuh"

namespace tilewise::cuda::backward {

template <int kQTile, int kKTile>
struct Turns {
  const Parameters& parameters;
  const KeyTile& tile;
  const QueryMask<kQTile, kKTile>& mask;

  // One thread: waits until all blocks before this one have added to a tile of queries. `number` is
  // the tile's number among those of all heads.
  __device__ __forceinline__ void wait(std::int32_t number, std::int32_t q_tile) const {
    const unsigned long long turn = own(q_tile);
    while (ptx::load_acquire(parameters.turns + number) != turn) {
    }
  }

  // One thread: this block has added to the tile.
  __device__ __forceinline__ void end(std::int32_t number, std::int32_t q_tile) const {
    ptx::store_release(parameters.turns + number, own(q_tile) + 1);
  }

 private:
  // The number of tiles of keys before this one that the queries see. With slices all tiles before
  // it count, since which of them are empty is known to their own blocks alone.
  __device__ __forceinline__ unsigned long long own(std::int32_t q_tile) const {
    const std::int32_t key_tile = tile.first / kKTile;
    if (parameters.problem.slices.present()) return key_tile;
    return key_tile - mask.first_key(q_tile) / kKTile;
  }
};

}  // namespace tilewise::cuda::backward
