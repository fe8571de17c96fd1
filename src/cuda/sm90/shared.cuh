// The shared memory of a block, and the roads between its producer and its consumers.
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/sm90/config.h"
#include "cuda/sm90/parameters.h"
#include "cuda/tile/edges.h"

namespace tilewise::cuda::sm90 {

// A tile of queries as the producer describes it to the consumers. Lengths and rows are below 2^30.
struct Tile {
  std::int32_t index;  // of the work; -1: no more
  std::int32_t batch;  // sequence
  std::int32_t head;
  std::int32_t diagonal;
  std::int32_t q_start;  // of the sequence's rows
  std::int32_t q_len;
  std::int32_t k_start;
  std::int32_t row;        // of the sequence, the tile's first
  std::int32_t first_key;  // tiles of keys [first_key, end_key)
  std::int32_t end_key;
  bool clear;  // behind the sequence's end follows another's V: not to be multiplied
  tile::Edges edges;
};

struct Barriers {
  std::uint64_t q_full[kMostWarpgroups], q_empty[kMostWarpgroups];
  std::uint64_t k_full[kMostStages], k_empty[kMostStages];
  std::uint64_t v_full[kMostStages], v_empty[kMostStages];
};

// Everything begins at multiples of 1024 bytes, as the swizzle wants.
template <KernelConfig kConfig>
struct Shared {
  unsigned char q[kConfig.q_bytes()];  // of each warpgroup (D / 64) panels of (64, 64)
  unsigned char k[kConfig.stages][kConfig.k_bytes()];  // (D / 64) panels of (k_tile, 64)
  unsigned char v[kConfig.stages][kConfig.k_bytes()];
  Barriers barriers;
  Tile tiles[2];  // in turns: the next one is described while this one is computed
};

// One arrival for each warp that reads: all four warps of a warpgroup read all of a stage. Q is
// each warpgroup's own: one may be done with a tile, and on its way into the next, before the
// other.
template <KernelConfig kConfig>
__device__ void init_barriers(Barriers& barriers) {
  constexpr std::uint32_t kReaders = 4 * kConfig.warpgroups();
  for (int warpgroup = 0; warpgroup < kConfig.warpgroups(); ++warpgroup) {
    ptx::init_barrier(ptx::shared_address(&barriers.q_full[warpgroup]), 1);
    ptx::init_barrier(ptx::shared_address(&barriers.q_empty[warpgroup]), 4);
  }
  for (int stage = 0; stage < kConfig.stages; ++stage) {
    ptx::init_barrier(ptx::shared_address(&barriers.k_full[stage]), 1);
    ptx::init_barrier(ptx::shared_address(&barriers.k_empty[stage]), kReaders);
    ptx::init_barrier(ptx::shared_address(&barriers.v_full[stage]), 1);
    ptx::init_barrier(ptx::shared_address(&barriers.v_empty[stage]), kReaders);
  }
  ptx::fence_barrier_init();
}

// A place in a ring of stages; the parity changes each time around.
template <int kStages>
struct Place {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <int kStages>
__device__ __forceinline__ void wait_full(std::uint64_t (&full)[kMostStages],
                                          const Place<kStages>& place) {
  ptx::wait(ptx::shared_address(&full[place.stage]), place.parity);
}
// The first time around, stages are empty without anybody having said so.
template <int kStages>
__device__ __forceinline__ void wait_empty(std::uint64_t (&empty)[kMostStages],
                                           const Place<kStages>& place) {
  ptx::wait(ptx::shared_address(&empty[place.stage]), place.parity ^ 1);
}
// This warp has read the stage. Whole warps.
__device__ __forceinline__ void release(std::uint64_t& empty) {
  if (threadIdx.x % 32 == 0) ptx::arrive(ptx::shared_address(&empty));
}

}  // namespace tilewise::cuda::sm90
