// The shared memory of a block, and the roads between its producer and its consumers.
#pragma once

#include <type_traits>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/sm90/config.h"
#include "cuda/sm90/parameters.h"
#include "cuda/tile/edges.h"
#include "cuda/tile/fragment.h"
#include "cuda/tile/swizzle.h"

namespace tilewise::cuda::sm90 {

// What a tile of queries sees of keys. kFolded: behind its tiles of keys, of which it sees all,
// come the one before and the one behind them, together (fold.cuh). One byte: where a
// Tile takes more, ptxas spills.
enum class Seen : std::uint8_t { kNothing, kSome, kFolded };

// A tile of queries as the describer tells the producer and the consumers. Lengths and rows are
// below 2^30. One that sees no keys has a tile of keys all the same, which nobody copies and
// nothing of which is visible.
struct Tile {
  char* out;           // the tile's first row in out,
  char* lse;           // and in lse; nullptr: none is asked for
  float sink;          // -inf: none
  float slope;         // of ALiBi, 0: none; in general kernels
  std::int32_t index;  // of the work; -1: no more
  std::int32_t batch;  // sequence
  std::int32_t head;
  std::int32_t kv_head;
  std::int32_t diagonal;
  std::int32_t q_start;  // of the sequence's rows
  std::int32_t q_len;
  std::int32_t k_start;
  std::int32_t row;        // of the sequence, the tile's first
  std::int32_t first_key;  // tiles of keys [first_key, end_key), of which
  std::int32_t end_key;
  std::int32_t start_key;  // this one comes first (tile/schedule.h)
  std::int32_t used;  // rows of V in tile end_key - 1; what lies behind is not to be multiplied
  Seen seen;
  bool ends_high[kMostWarpgroups];  // a warpgroup sees nothing of the first half of tile first_key,
                                    // which is not its only one
  tile::Edges edges;
  std::int32_t full_begin[kMostWarpgroups];  // tiles of keys of which every row of a warpgroup sees
  std::int32_t full_end[kMostWarpgroups];    // all
};

// Tiles of keys in all.
template <KernelConfig kConfig>
__device__ __forceinline__ std::int32_t key_count(const Tile& tile) {
  const std::int32_t count = tile.end_key - tile.first_key;
  return kConfig.folds && tile.seen == Seen::kFolded ? count + 2 : count;
}

// Tiles are described ahead: when the producer wants the next one, consumers may still close the
// fifth before it, or a carrier store the sixth, if each has one tile of keys. Where all have four,
// a carrier may still store the fourth before it: then there is room for four together.
inline constexpr int kTileSlots = 8;

// Of a row, before a sink joins: max is in units of log 2.
struct alignas(8) RowSum {
  float max;
  float sum;
};

struct Barriers {
  std::uint64_t q_full[kMostWarpgroups][kMostQStages], q_empty[kMostWarpgroups][kMostQStages];
  std::uint64_t k_full[kMostStages], k_empty[kMostStages];
  std::uint64_t v_full[kMostStages], v_empty[kMostStages];
  std::uint64_t out_full[kMostWarpgroups], out_empty[kMostWarpgroups];  // with carriers
  std::uint64_t tile_full[kTileSlots], tile_wanted;
  std::uint64_t open;  // a wait for parity 1 never waits
};

// What a consumer warpgroup leaves to its carrier, beside rows of out.
struct Leaving {
  RowSum rows[tile::kRows];
  bool redo[tile::kRows / tile::kWarpRows];  // rows of a warp by the careful path
};

// A warp's rows of 64 columns of the output, on their way to memory.
inline constexpr int kStageBytes = tile::kWarpRows * tile::kPanelRowBytes;
template <KernelConfig kConfig>
struct OutStages {
  unsigned char of_warp[kConfig.warpgroups() * 4][kStageBytes];  // a panel (16, 64)
};
// Or all rows of a warpgroup, left to its carrier: (Dv / 64) panels (64, 64).
template <KernelConfig kConfig>
struct OutPlaces {
  unsigned char of_warpgroup[kConfig.warpgroups()][tile::kRows * kConfig.value_dim * 2];
};
struct Nothing {};
template <KernelConfig kConfig>
using OutMemory = std::conditional_t<
    kConfig.out_through_q(), Nothing,
    std::conditional_t<kConfig.has_carriers(), OutPlaces<kConfig>, OutStages<kConfig>>>;
template <KernelConfig kConfig>
using LeavingRows = Leaving[kConfig.has_carriers() ? kConfig.warpgroups() : 1];

// Everything begins at multiples of 1024 bytes, as the swizzle wants.
template <KernelConfig kConfig>
struct Shared {
  unsigned char q[kConfig.q_stages][kConfig.q_bytes()];  // a warpgroup's: (D / 64) panels (64, 64)
  unsigned char k[kConfig.k_stages][kConfig.k_bytes()];  // (D / 64) panels of (k_tile, 64)
  unsigned char v[kConfig.v_stages][kConfig.v_bytes()];  // (Dv / 64) panels of (k_tile, 64)
  OutMemory<kConfig> out;
  Barriers barriers;
  Tile tiles[kTileSlots];
  LeavingRows<kConfig> leaving;
  SequenceList sequences;        // where each block lists them
  unsigned long long last_mark;  // of this block (repair.cuh)
};

// One arrival for each warp that reads: all four warps of a warpgroup read all of a stage. Q is
// each warpgroup's own: one may be done with a tile, and on its way into the next, before the
// other.
template <KernelConfig kConfig>
__device__ void init_barriers(Barriers& barriers) {
  constexpr std::uint32_t kReaders = 4 * kConfig.warpgroups();
  for (int warpgroup = 0; warpgroup < kConfig.warpgroups(); ++warpgroup) {
    for (int stage = 0; stage < kConfig.q_stages; ++stage) {
      ptx::init_barrier(ptx::shared_address(&barriers.q_full[warpgroup][stage]), 1);
      ptx::init_barrier(ptx::shared_address(&barriers.q_empty[warpgroup][stage]), 4);
    }
    // One for each lane that leaves sums.
    ptx::init_barrier(ptx::shared_address(&barriers.out_full[warpgroup]), 128 / tile::kLanesPerRow);
    ptx::init_barrier(ptx::shared_address(&barriers.out_empty[warpgroup]), 1);
  }
  const auto init_ring = [](std::uint64_t* full, std::uint64_t* empty, int stages) {
    for (int stage = 0; stage < stages; ++stage) {
      ptx::init_barrier(ptx::shared_address(full + stage), 1);
      ptx::init_barrier(ptx::shared_address(empty + stage), kReaders);
    }
  };
  init_ring(barriers.k_full, barriers.k_empty, kConfig.k_stages);
  init_ring(barriers.v_full, barriers.v_empty, kConfig.v_stages);
  for (std::uint64_t& full : barriers.tile_full) ptx::init_barrier(ptx::shared_address(&full), 1);
  ptx::init_barrier(ptx::shared_address(&barriers.tile_wanted), 1);
  ptx::init_barrier(ptx::shared_address(&barriers.open), 1);
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

  // Of the stage, in bytes. Chosen, not multiplied: ptxas chooses in uniform registers.
  __device__ __forceinline__ std::uint32_t offset(std::uint32_t bytes) const {
    if constexpr (kStages == 1) return 0;
    if constexpr (kStages == 2) return stage == 0 ? 0 : bytes;
    return static_cast<std::uint32_t>(stage) * bytes;
  }
};

// The place that comes `count` after the first, for counts below 2^32.
template <int kStages>
__device__ __forceinline__ Place<kStages> place_of(std::uint32_t count) {
  return {static_cast<int>(count % kStages), count / kStages % 2};
}

template <int kStages, int kMost>
__device__ __forceinline__ void wait_full(std::uint64_t (&full)[kMost],
                                          const Place<kStages>& place) {
  ptx::wait(ptx::shared_address(&full[place.stage]), place.parity);
}
template <int kStages, int kMost>
__device__ __forceinline__ bool is_full(std::uint64_t (&full)[kMost], const Place<kStages>& place) {
  return ptx::test(ptx::shared_address(&full[place.stage]), place.parity);
}
// The first time around, stages are empty without anybody having said so.
template <int kStages, int kMost>
__device__ __forceinline__ void wait_empty(std::uint64_t (&empty)[kMost],
                                           const Place<kStages>& place) {
  ptx::wait(ptx::shared_address(&empty[place.stage]), place.parity ^ 1);
}
// This warp has read the stage. Whole warps.
__device__ __forceinline__ void release(std::uint64_t& empty) {
  if (threadIdx.x % 32 == 0) ptx::arrive(ptx::shared_address(&empty));
}

}  // namespace tilewise::cuda::sm90
