// A fixed order of the sums of dQ, for deterministic gradients.
//
// The blocks of a head add to dQ of a tile of queries in the order of their keys. turns[tile] is
// the number of blocks that have added to it. Blocks start in the same order (key_tile.cuh), so
// that each waits only for blocks that run.
#pragma once

#include "cuda/backward/sm80/query_mask.cuh"
#include "cuda/backward/sm80/shared.cuh"
#include "cuda/ptx/memory_order.cuh"

namespace tilewise::cuda::backward::sm80 {

template <int kQTile, int kKTile>
struct Turns {
  const Parameters& parameters;
  const KeyTile& tile;
  const QueryMask<kQTile, kKTile>& mask;
  std::int32_t& pending;  // in shared memory: the tile whose turn has not ended yet, or -1
  bool adds;              // to dQ

  // Whole warps: waits until all blocks before this one have added to a tile.
  __device__ __forceinline__ void wait(std::int32_t q_tile) const {
    if (!is_ordered()) return;
    if (threadIdx.x % 32 == 0) wait_for(q_tile);
    if (threadIdx.x == 0) pending = q_tile;
    __syncwarp();
  }

  // After a barrier of the block that follows its additions to a tile: the turn of the next block.
  __device__ __forceinline__ void end() const {
    if (!is_ordered() || threadIdx.x != 0 || pending < 0) return;
    release(pending);
    pending = -1;
  }

  // With slices, the turn of this block at the tiles from `begin` to before `end` (-1: to the last
  // one), to which it adds nothing.
  __device__ __forceinline__ void pass(std::int32_t begin, std::int32_t end) const {
    if (!is_ordered() || !parameters.problem.slices.present() || threadIdx.x != 0) return;
    if (end < 0) end = math::ceil_div(tile.q.count, kQTile);
    for (std::int32_t q_tile = begin; q_tile < end; ++q_tile) {
      wait_for(q_tile);
      release(q_tile);
    }
  }

 private:
  __device__ __forceinline__ bool is_ordered() const { return parameters.turns != nullptr && adds; }

  // The number of tiles of keys before this one that the queries see. With slices all tiles before
  // it count, since which of them are empty is known to their own blocks alone.
  __device__ __forceinline__ unsigned long long own(std::int32_t q_tile) const {
    const std::int32_t key_tile = tile.first / kKTile;
    if (parameters.problem.slices.present()) return key_tile;
    return key_tile - mask.first_key(q_tile) / kKTile;
  }

  __device__ __forceinline__ unsigned long long* turn_of(std::int32_t q_tile) const {
    return parameters.turns + tile.first_query_tile + q_tile;
  }
  __device__ __forceinline__ void wait_for(std::int32_t q_tile) const {
    const unsigned long long turn = own(q_tile);
    while (ptx::load_acquire(turn_of(q_tile)) != turn) {
    }
  }
  __device__ __forceinline__ void release(std::int32_t q_tile) const {
    ptx::store_release(turn_of(q_tile), own(q_tile) + 1);
  }
};

}  // namespace tilewise::cuda::backward::sm80
