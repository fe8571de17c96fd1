// The turns of a block whose threads all add to dQ.
#pragma once

#include "cuda/backward/turns.cuh"

namespace tilewise::cuda::backward::sm80 {

template <int kQTile, int kKTile>
struct BlockTurns {
  Turns<kQTile, kKTile> turns;
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
    end_before(math::ceil_div(static_cast<std::int32_t>(turns.tile.sequence.q_len), kQTile));
    pending = -1;
  }

  // Whole warps: waits until all blocks before this one have added to a tile.
  __device__ __forceinline__ void wait(std::int32_t q_tile) const {
    if (!ordered) return;
    if (threadIdx.x % 32 == 0) turns.wait(number(q_tile), q_tile);
    if (threadIdx.x == 0) pending = q_tile;
    __syncwarp();
  }

 private:
  __device__ __forceinline__ std::int32_t number(std::int32_t q_tile) const {
    return turns.tile.first_query_tile + q_tile;
  }
  __device__ __forceinline__ void end_before(std::int32_t q_tile) const {
    if (pending >= 0) turns.end(number(pending), pending);
    if (turns.parameters.problem.slices.present()) {
      for (std::int32_t skipped = pending + 1; skipped < q_tile; ++skipped) {
        turns.wait(number(skipped), skipped);
        turns.end(number(skipped), skipped);
      }
    }
  }
};

}  // namespace tilewise::cuda::backward::sm80
