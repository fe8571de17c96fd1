// A fixed order of the sums of dQ, for deterministic gradients.
//
// The blocks of a head add to dQ of a tile of queries in the order of their keys or, under a causal
// mask, in the reverse order: there a block begins at its diagonal, and the block of the keys
// before comes to the same queries a little later. turns[tile] is the number of blocks that have
// added to it. Blocks start in the same order (key_tile.cuh), so that each waits only for blocks
// that run.
#pragma once

#include "cuda/backward/parameters.h"
#include "cuda/ptx/memory_order.cuh"

namespace tilewise::cuda::backward {

// The turns at a tile of queries, by its number among those of all heads. One thread calls each.
struct Turns {
  const Parameters& parameters;
  std::int32_t number;

  // Waits until all blocks before the one of this turn have added to the tile.
  __device__ __forceinline__ void wait(unsigned long long turn) const {
    while (ptx::load_acquire(parameters.turns + number) != turn) {
    }
  }

  // The block of this turn has added to the tile.
  __device__ __forceinline__ void end(unsigned long long turn) const {
    ptx::store_release(parameters.turns + number, turn + 1);
  }

  // wait() where `blocks` blocks have each turn together.
  __device__ __forceinline__ void wait_shared(unsigned long long turn,
                                              unsigned long long blocks) const {
    while (ptx::load_acquire(parameters.turns + number) < turn * blocks) {
    }
  }
  __device__ __forceinline__ void end_shared() const {
    ptx::add_release(parameters.turns + number, 1);
  }
};

}  // namespace tilewise::cuda::backward
