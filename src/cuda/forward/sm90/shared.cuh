// The shared memory of a block, and the roads between its producer and its consumers.
#pragma once

#include <type_traits>

#include "cuda/forward/sm90/config.h"
#include "cuda/forward/sm90/parameters.h"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/swizzle.h"
#include "cuda/tile/window_band.h"

namespace tilewise::cuda::sm90 {

// What a tile of queries sees of keys. kFolded: behind its tiles of keys, of which it sees all,
// come the one before and the one behind them, together (fold.cuh). One byte: where a
// Tile takes more, ptxas spills.
enum class KeyVisibility : std::uint8_t { kNone, kSome, kFusedEdges };

// A tile of queries as the describer tells the producer and the consumers. Lengths and rows are
// below 2^30. One that sees no keys has a tile of keys all the same, which nobody copies and
// nothing of which is visible.
struct WorkTile {
  char* out;           // the tile's first row in out,
  char* lse;           // and in lse; nullptr: none is asked for
  float sink;          // -inf: none
  float slope;         // of ALiBi, 0: none; in score_mod kernels
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
  std::int32_t v_rows;  // rows of V in tile end_key - 1; what lies behind is not to be multiplied
  KeyVisibility keys;
  bool skips_first_half[kMaxConsumers];  // a warpgroup sees nothing of the first half of tile
                                         // first_key, which is not its only one
  tile::WindowBand edges;
  std::int32_t full_begin[kMaxConsumers];  // tiles of keys of which every row of a warpgroup sees
  std::int32_t full_end[kMaxConsumers];    // all
};

// Tiles of keys in all.
template <KernelConfig kConfig>
__device__ __forceinline__ std::int32_t key_count(const WorkTile& tile) {
  const std::int32_t count = tile.end_key - tile.first_key;
  return kConfig.fused_edges && tile.keys == KeyVisibility::kFusedEdges ? count + 2 : count;
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
  std::uint64_t q_full[kMaxConsumers][kMaxQStages], q_empty[kMaxConsumers][kMaxQStages];
  std::uint64_t k_full[kMaxStages], k_empty[kMaxStages];
  std::uint64_t v_full[kMaxStages], v_empty[kMaxStages];
  std::uint64_t out_full[kMaxConsumers], out_empty[kMaxConsumers];  // with carriers
  std::uint64_t tile_full[kTileSlots], tile_requested;
  std::uint64_t open;  // a wait for parity 1 never waits
};

// What a consumer warpgroup leaves to its carrier, beside rows of out.
struct StagedOutput {
  RowSum rows[tile::kRows];
  bool recompute[tile::kRows / tile::kWarpRows];  // rows of a warp by the non_finite_pass path
};

// A warp's rows of 64 columns of the output, on their way to memory.
inline constexpr int kStageBytes = tile::kWarpRows * tile::kPanelRowBytes;
template <KernelConfig kConfig>
struct OutStages {
  unsigned char of_warp[kConfig.consumers() * 4][kStageBytes];  // a panel (16, 64)
};
// Or all rows of a warpgroup, left to its carrier: (Dv / 64) panels (64, 64).
template <KernelConfig kConfig>
struct OutPlaces {
  unsigned char of_warpgroup[kConfig.consumers()][tile::kRows * kConfig.value_dim * 2];
};
struct Nothing {};
template <KernelConfig kConfig>
using OutMemory = std::conditional_t<
    kConfig.stages_out_in_q(), Nothing,
    std::conditional_t<kConfig.has_epilogue_warps(), OutPlaces<kConfig>, OutStages<kConfig>>>;
template <KernelConfig kConfig>
using StagedOutputs = StagedOutput[kConfig.has_epilogue_warps() ? kConfig.consumers() : 1];

// Everything begins at multiples of 1024 bytes, as the swizzle wants.
template <KernelConfig kConfig>
struct Shared {
  unsigned char q[kConfig.q_stages][kConfig.q_bytes()];  // a warpgroup's: (D / 64) panels (64, 64)
  unsigned char k[kConfig.k_stages][kConfig.k_bytes()];  // (D / 64) panels of (k_tile, 64)
  unsigned char v[kConfig.v_stages][kConfig.v_bytes()];  // (Dv / 64) panels of (k_tile, 64)
  OutMemory<kConfig> out;
  Barriers barriers;
  WorkTile tiles[kTileSlots];
  StagedOutputs<kConfig> staged;
  ListedSequences sequences;        // where each block lists them
  unsigned long long last_flagged;  // of this block (repair.cuh)
};

// One arrival for each warp that reads: all four warps of a warpgroup read all of a stage. Q is
// each warpgroup's own: one may be done with a tile, and on its way into the next, before the
// other.
template <KernelConfig kConfig>
__device__ void init_barriers(Barriers& barriers) {
  constexpr std::uint32_t kReaders = 4 * kConfig.consumers();
  for (int warpgroup = 0; warpgroup < kConfig.consumers(); ++warpgroup) {
    for (int stage = 0; stage < kConfig.q_stages; ++stage) {
      ptx::mbarrier_init(ptx::shared_address(&barriers.q_full[warpgroup][stage]), 1);
      ptx::mbarrier_init(ptx::shared_address(&barriers.q_empty[warpgroup][stage]), 4);
    }
    // One for each lane that leaves sums.
    ptx::mbarrier_init(ptx::shared_address(&barriers.out_full[warpgroup]),
                       128 / tile::kLanesPerRow);
    ptx::mbarrier_init(ptx::shared_address(&barriers.out_empty[warpgroup]), 1);
  }
  const auto init_ring = [](std::uint64_t* full, std::uint64_t* empty, int stages) {
    for (int stage = 0; stage < stages; ++stage) {
      ptx::mbarrier_init(ptx::shared_address(full + stage), 1);
      ptx::mbarrier_init(ptx::shared_address(empty + stage), kReaders);
    }
  };
  init_ring(barriers.k_full, barriers.k_empty, kConfig.k_stages);
  init_ring(barriers.v_full, barriers.v_empty, kConfig.v_stages);
  for (std::uint64_t& full : barriers.tile_full) ptx::mbarrier_init(ptx::shared_address(&full), 1);
  ptx::mbarrier_init(ptx::shared_address(&barriers.tile_requested), 1);
  ptx::mbarrier_init(ptx::shared_address(&barriers.open), 1);
  ptx::fence_mbarrier_init();
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
  ptx::mbarrier_wait(ptx::shared_address(&full[place.stage]), place.parity);
}
template <int kStages, int kMost>
__device__ __forceinline__ bool is_full(std::uint64_t (&full)[kMost], const Place<kStages>& place) {
  return ptx::mbarrier_test(ptx::shared_address(&full[place.stage]), place.parity);
}
// The first time around, stages are empty without anybody having said so.
template <int kStages, int kMost>
__device__ __forceinline__ void wait_empty(std::uint64_t (&empty)[kMost],
                                           const Place<kStages>& place) {
  ptx::mbarrier_wait(ptx::shared_address(&empty[place.stage]), place.parity ^ 1);
}
// This warp has read the stage. Whole warps.
__device__ __forceinline__ void release(std::uint64_t& empty) {
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&empty));
}

}  // namespace tilewise::cuda::sm90
