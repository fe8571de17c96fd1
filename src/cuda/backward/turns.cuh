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
};

// The turns at a half of dQ of a tile of queries, where halves are added apart from each other:
// turns[tile] holds 32 bits for each.
struct HalfTurns {
  const Parameters& parameters;
  std::int32_t number;
  int half;

  // Whether all blocks before the one of this turn have added to the half.
  __device__ __forceinline__ bool has_come(std::uint32_t turn) const {
    return ptx::load_acquire(count()) == turn;
  }
  __device__ __forceinline__ void wait(std::uint32_t turn) const {
    while (!has_come(turn)) {
    }
  }
  __device__ __forceinline__ void end(std::uint32_t turn) const {
    ptx::store_release(count(), turn + 1);
  }

 private:
  __device__ __forceinline__ std::uint32_t* count() const {
    return reinterpret_cast<std::uint32_t*>(parameters.turns + number) + half;
  }
};

}  // namespace tilewise::cuda::backward
