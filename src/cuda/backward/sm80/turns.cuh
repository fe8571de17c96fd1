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
  bool ordered;

  // At the start of a tile, after a barrier of the block: ends the turn at the tile before it. With
  // slices, the block also passes its turn at the tiles between both, to which it adds nothing.
  __device__ __forceinline__ void begin(std::int32_t q_tile) const {
    if (ordered && threadIdx.x == 0) end_before(q_tile);
  }

  // After the last tile of a head and a barrier of the block.
  __device__ __forceinline__ void end_all() const {
    if (!ordered || threadIdx.x != 0) return;
    end_before(math::ceil_div(tile.q.count, kQTile));
    pending = -1;
  }

  // Whole warps: waits until all blocks before this one have added to a tile.
  __device__ __forceinline__ void wait(std::int32_t q_tile) const {
    if (!ordered) return;
    if (threadIdx.x % 32 == 0) wait_for(q_tile);
    if (threadIdx.x == 0) pending = q_tile;
    __syncwarp();
  }

 private:
  __device__ __forceinline__ void end_before(std::int32_t q_tile) const {
    if (pending >= 0) release(pending);
    if (parameters.problem.slices.present()) {
      for (std::int32_t skipped = pending + 1; skipped < q_tile; ++skipped) {
        wait_for(skipped);
        release(skipped);
      }
    }
  }

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
