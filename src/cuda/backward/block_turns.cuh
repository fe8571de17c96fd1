// The turns of a block whose threads all add to dQ.
#pragma once

#include "cuda/backward/key_tile.cuh"
#include "cuda/backward/query_mask.cuh"
#include "cuda/backward/turns.cuh"

namespace tilewise::cuda::backward {

template <int kQTile, int kKTile>
struct BlockTurns {
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

  // Ends the turn at the last tile of a head, after a barrier of the block.
  __device__ __forceinline__ void end_all() const {
    if (!ordered || threadIdx.x != 0) return;
    end_before(math::ceil_div(static_cast<std::int32_t>(tile.sequence.q_len), kQTile));
    pending = -1;
  }

  // Waits until all blocks before this one have added to a tile. Whole warps call it.
  __device__ __forceinline__ void wait(std::int32_t q_tile) const {
    if (!ordered) return;
    if (threadIdx.x % 32 == 0) turns(q_tile).wait(mask.turn(q_tile));
    if (threadIdx.x == 0) pending = q_tile;
    __syncwarp();
  }

 private:
  __device__ __forceinline__ Turns turns(std::int32_t q_tile) const {
    return {parameters, tile.first_query_tile + q_tile};
  }
  __device__ __forceinline__ void end_before(std::int32_t q_tile) const {
    if (pending >= 0) turns(pending).end(mask.turn(pending));
    if (parameters.problem.slices.present()) {
      for (std::int32_t skipped = pending + 1; skipped < q_tile; ++skipped) {
        turns(skipped).wait(mask.turn(skipped));
        turns(skipped).end(mask.turn(skipped));
      }
    }
  }
};

}  // namespace tilewise::cuda::backward
