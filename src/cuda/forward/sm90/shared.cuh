// The shared memory of a block: stages of Q, K and V, their barriers, and the work tiles that the
// scheduler warp publishes.
#pragma once

#include <type_traits>

#include "cuda/forward/sm90/config.h"
#include "cuda/forward/sm90/parameters.h"
#include "cuda/forward/sm90/reports.cuh"
#include "cuda/sm90/pipeline.cuh"
#include "cuda/tile/block_mask.h"
#include "cuda/tile/fragment.h"
#include "cuda/tile/swizzle.h"
#include "cuda/tile/window_band.h"
#include "math/integer.h"

namespace tilewise::cuda::sm90 {

// The keys of a query tile. kFusedEdges: its key tiles are followed by the tile before them and the
// one after them, in one step (fused_edges.cuh). kCut: of its list of key tiles some are partial.
// One byte: where a WorkTile takes more than 128,
// ptxas spills.
enum class KeyVisibility : std::uint8_t { kNone, kSome, kFusedEdges, kCut };

// Probs of a tile with large values are so much smaller, by powers of two, that they add up to 1/2
// at most.
inline constexpr float kShift = 80.0f;

// The key tiles that every row of a warpgroup sees whole.
struct FullKeyTiles {
  std::int32_t begin[kMaxConsumers];
  std::int32_t end[kMaxConsumers];
};
// The key tiles of a query tile that has a list of them.
struct ListedKeyTiles {
  const tile::BlockMaskWord* words;
  std::int32_t count;
  std::int32_t last_word;      // that has any,
  std::uint32_t last_visited;  // and those that it has
  std::int32_t start_bits;     // KeyTile::bits of the start tile
};

// A query tile as the scheduler warp publishes it. Lengths and rows are below 2^30. A query tile
// without keys has one key tile all the same, which is not loaded and of which no key is visible.
struct WorkTile {
  char* out;           // the tile's first row of out
  char* lse;           // and of lse; nullptr: no lse is asked for
  float sink;          // -inf: none
  float slope;         // of ALiBi, 0: none; in kernels with a score mod
  std::int32_t index;  // number of the tile; -1: there is no more work
  std::int32_t batch;  // number of the sequence
  std::int32_t head;
  std::int32_t kv_head;
  std::int32_t diagonal;
  std::int32_t q_start;  // the sequence's first row
  std::int32_t q_len;
  std::int32_t k_start;
  std::int32_t row;        // the tile's first row, within the sequence
  std::int32_t first_key;  // key tiles [first_key, end_key), or some of them (ListedKeyTiles),
  std::int32_t end_key;
  std::int32_t start_key;  // of which this one comes first (tile/scheduler.h)
  std::int32_t v_rows;     // rows of V in key tile end_key - 1 that belong to the sequence
  KeyVisibility keys;
  bool half_hidden[kMaxConsumers];  // a warpgroup sees nothing of the first half of key tile
                                    // first_key, and there are others
  tile::WindowBand band;            // beside a list: the whole sequence
  union {
    FullKeyTiles full;
    ListedKeyTiles listed;
  };
};

static_assert(sizeof(WorkTile) == 128);

// The number of key tiles that are loaded.
template <KernelConfig kConfig>
__device__ __forceinline__ std::int32_t key_tile_count(const WorkTile& tile) {
  if constexpr (kConfig.block_mask) return math::max(tile.listed.count, 1);
  const std::int32_t count = tile.end_key - tile.first_key;
  return kConfig.fused_edges && tile.keys == KeyVisibility::kFusedEdges ? count + 2 : count;
}

// Tiles are published ahead. When the producer requests the next one, consumers may still finalise
// the fifth before it and an epilogue warp may store the sixth, if each has one key tile. Where all
// have four, an epilogue warp may still store the fourth before it: there is room for four at once.
inline constexpr int kTileSlots = 8;

// The state of a row before a sink joins: max is in units of log 2.
struct alignas(8) RowSum {
  float max;
  float sum;
};

struct Barriers {
  StageBarriers<kMaxQStages> q[kMaxConsumers];  // each consumer warpgroup has Q of its own
  StageBarriers<kMaxStages> k, v;
  StageBarriers<1> out[kMaxConsumers];  // between a warpgroup and its epilogue warp
  std::uint64_t tile_full[kTileSlots], tile_requested;
  std::uint64_t always_complete;  // a wait for phase 1 never waits
};

// The data that a consumer warpgroup hands to its epilogue warp together with the rows of out.
struct StagedOutput {
  RowSum rows[tile::kRows];
  bool non_finite[tile::kRows / tile::kWarpRows];  // whether a result of a warp is not
};

// Where 64 columns of a warp's rows pass on their way from registers to global memory.
inline constexpr int kStageBytes = tile::kWarpRows * tile::kPanelRowBytes;
template <KernelConfig kConfig>
struct WarpOutStages {
  unsigned char of_warp[kConfig.consumers() * 4][kStageBytes];  // a panel (16, 64)
};
// Where a warpgroup stages all of its rows for its epilogue warp: (Dv / 64) panels (64, 64).
template <KernelConfig kConfig>
struct WarpgroupOutStages {
  unsigned char of_warpgroup[kConfig.consumers()][tile::kRows * kConfig.value_dim * 2];
};
struct NoOutStages {};
template <KernelConfig kConfig>
using OutStages =
    std::conditional_t<kConfig.stages_out_in_q(), NoOutStages,
                       std::conditional_t<kConfig.has_epilogue_warps(), WarpgroupOutStages<kConfig>,
                                          WarpOutStages<kConfig>>>;
template <KernelConfig kConfig>
using StagedOutputs = StagedOutput[kConfig.has_epilogue_warps() ? kConfig.consumers() : 1];

// A block's record of query tiles that the fast steps cannot compute (listed_tiles.cuh).
template <KernelConfig kConfig>
struct CarefulState {
  int pass;          // 0: the fast one
  unsigned reports;  // report_failure()
  std::int32_t
      next_round;        // where the fast pass has ended early, the first round that is left; or -1
  unsigned found_value;  // of the scan of V (passes.cuh)
  unsigned long long listed;    // head of the list of tiles that this pass could not compute,
  unsigned long long selected;  // and of those that it takes (listed_tiles.cuh)
  bool searched[kTileSlots];    // it is known whether V of the tile is large
  bool shifted[kTileSlots];     // probs of the tile are 2^-kShift times as large
  bool all_nan[4 * (kConfig.consumers() + 1)];  // the rows of a warp have seen NaN scores, without
                                                // an epilogue warp
  bool non_finite[kConfig.v_stages];  // V had what is not finite, now zero (non_finite_values.cuh)
};

template <KernelConfig kConfig>
__device__ void init_careful_state(CarefulState<kConfig>& careful) {
  careful.pass = 0;
  careful.reports = 0;
  careful.next_round = -1;
  careful.listed = 0;
  careful.selected = 0;
}

// The description of the key tile in each stage of K, which the producer writes.
struct NoKeyTiles {};
struct StagedKeyTiles {
  tile::KeyTile of_stage[kMaxStages];
};
template <KernelConfig kConfig>
using KeyTiles = std::conditional_t<kConfig.block_mask, StagedKeyTiles, NoKeyTiles>;

// The swizzle wants stages at multiples of 1024 bytes.
template <KernelConfig kConfig>
struct Shared {
  unsigned char q[kConfig.q_stages][kConfig.q_bytes()];  // per warpgroup: (D / 64) panels (64, 64)
  unsigned char k[kConfig.k_stages][kConfig.k_bytes()];  // (D / 64) panels (k_tile, 64)
  unsigned char v[kConfig.v_stages][kConfig.v_bytes()];  // (Dv / 64) panels (k_tile, 64)
  OutStages<kConfig> out;
  Barriers barriers;
  WorkTile tiles[kTileSlots];
  StagedOutputs<kConfig> staged;
  KeyTiles<kConfig> key_tiles;
  ListedSequences sequences;  // where each block lists them
  CarefulState<kConfig> careful;
};

// The factors of a query tile's fp8 numbers (docs/semantics.md, "fp8").
struct TileScales {
  float scores;  // of Q K^T, in units of log 2
  float values;
};
inline constexpr int kTransposers = 4;  // warps that transpose V, one for each scheduler

// With fp8, V lies there twice: as it is loaded, and transposed for wgmma.
template <KernelConfig kConfig>
requires(kConfig.fp8) struct Shared<kConfig> {
  unsigned char q[kConfig.q_stages][kConfig.q_bytes()];  // per warpgroup: a panel (64, 128)
  unsigned char k[kConfig.k_stages][kConfig.k_bytes()];  // a panel (k_tile, 128)
  unsigned char loaded_v[kConfig.loaded_v_stages][kConfig.loaded_v_bytes()];  // (k_tile, 128)
  unsigned char v[kConfig.v_stages][kConfig.v_bytes()];                       // (Dv, k_tile)
  OutStages<kConfig> out;
  Barriers barriers;
  StageBarriers<kMaxStages> loaded_v_barriers;
  WorkTile tiles[kTileSlots];
  TileScales scales[kTileSlots];
  ListedSequences sequences;
  CarefulState<kConfig> careful;  // without use but for the scheduler warp, which sees no reports
  int markers[kConfig.v_stages];  // stages of markers that follow (fp8/transposer.cuh)
  // By each of these warps, for the stages of V as it is loaded and the next ones: V that is not
  // finite.
  bool found[2 * kConfig.loaded_v_stages][kTransposers];
};

// One arrival for each warp that reads: all four warps of a warpgroup read all of a stage. kAgain:
// the barriers have been used.
template <KernelConfig kConfig, bool kAgain = false>
__device__ void init_barriers(Barriers& barriers) {
  const auto init = [](std::uint64_t& barrier, std::uint32_t arrivals) {
    if constexpr (kAgain) ptx::mbarrier_invalidate(ptx::shared_address(&barrier));
    ptx::mbarrier_init(ptx::shared_address(&barrier), arrivals);
  };
  for (int warpgroup = 0; warpgroup < kConfig.consumers(); ++warpgroup) {
    for (int stage = 0; stage < kConfig.q_stages; ++stage) {
      init(barriers.q[warpgroup].full[stage], 1);
      init(barriers.q[warpgroup].empty[stage], 4);
    }
    // One arrival for each lane that stages sums.
    init(barriers.out[warpgroup].full[0], 128 / tile::kLanesPerRow);
    init(barriers.out[warpgroup].empty[0], 1);
  }
  const auto init_ring = [&](StageBarriers<kMaxStages>& ring, int stages,
                             std::uint32_t writers = 1) {
    for (int stage = 0; stage < stages; ++stage) {
      init(ring.full[stage], writers);
      init(ring.empty[stage], 4 * kConfig.consumers());
    }
  };
  init_ring(barriers.k, kConfig.k_stages);
  init_ring(barriers.v, kConfig.v_stages, kConfig.fp8 ? kTransposers : 1);
  for (std::uint64_t& full : barriers.tile_full) init(full, 1);
  init(barriers.tile_requested, 1);
  init(barriers.always_complete, 1);
  ptx::fence_mbarrier_init();
}

// The ring of V as it is loaded, before the last fence of init_barriers().
template <KernelConfig kConfig>
__device__ void init_loaded_v_barriers(StageBarriers<kMaxStages>& ring) {
  for (int stage = 0; stage < kConfig.loaded_v_stages; ++stage) {
    ptx::mbarrier_init(ptx::shared_address(&ring.full[stage]), 1);
    ptx::mbarrier_init(ptx::shared_address(&ring.empty[stage]), kTransposers);
  }
}

}  // namespace tilewise::cuda::sm90
