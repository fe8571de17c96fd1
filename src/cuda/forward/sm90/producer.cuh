// The producer: one thread that loads K and V of the published tiles by TMA, and Q where no
// epilogue warp does (epilogue_warp.cuh).
#pragma once

#include "cuda/forward/sm90/shared.cuh"
#include "cuda/sm90/tma_tile.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/scheduler.h"

namespace tilewise::cuda::sm90 {

// The consumer's order of loads: K runs one key tile ahead of V, also from one query tile to the
// next, whose first K comes before the last V of the one before. So does its Q where there is a
// second stage of Q; else Q would wait for the last scores, and V with it.
// kCareful: of a careful pass, whose tiles are published one by one.
template <KernelConfig kConfig, bool kCareful = false>
class Producer {
 public:
  __device__ Producer(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters), shared_(shared) {}

  __device__ __forceinline__ void run() {
    // The first tile is located, though not complete: its first loads are issued meanwhile.
    tile_ = &shared_.tiles[0];
    if (tile_->index >= 0) {
      load_first_k();
      if constexpr (kLoadsQ) load_q(*tile_);
    }
    if (!next_tile()) return finish();
    if constexpr (kLoadsQ) expect_q();
#pragma unroll 1
    for (;;) {
      const std::int32_t last_key = load_keys(*tile_);
      const WorkTile& tile = *tile_;
      const bool more = next_tile();
      if (more) load_first_k();
      if constexpr (kLoadsQ && kLoadsQEarly) {
        if (more) load_next_q();
      }
      load_v(tile, last_key);
      if (!more) return finish();
      if constexpr (kLoadsQ && !kLoadsQEarly) load_next_q();
    }
  }

 private:
  // A query tile requests the next one when so many of its key tiles are left. Late: work that is
  // taken early is not there for a block that would begin it sooner.
  static constexpr std::int32_t kRequestAhead = 4;
  static constexpr bool kLoadsQ = !kConfig.has_epilogue_warps();
  static constexpr bool kLoadsQEarly = kConfig.q_stages > 1;
  static constexpr int kLoadedVStages = kConfig.fp8 ? kConfig.loaded_v_stages : kConfig.v_stages;
  static constexpr int kElementBytes = kConfig.fp8 ? 1 : 2;
  static constexpr int kHeadColumns = kConfig.row_bytes(kConfig.head_dim) / kElementBytes;
  static constexpr int kValueColumns = kConfig.row_bytes(kConfig.value_dim) / kElementBytes;
  static constexpr int kQRowsBytes = tile::kRows * kConfig.row_bytes(kConfig.head_dim);

  // All K but the first, and all V but the last, whose key tile is returned.
  __device__ __forceinline__ std::int32_t load_keys(const WorkTile& tile) {
    std::int32_t key = tile.start_key;
    std::int32_t left = key_tile_count<kConfig>(tile);
    if (left <= kRequestAhead) request_next();
#pragma unroll 1
    while (--left > 0) {
      std::int32_t next = next_key(tile, key);
      if constexpr (kConfig.fused_edges) {
        if (tile.keys == KeyVisibility::kFusedEdges && left <= 2)
          next = left == 2 ? tile.first_key - 1 : tile.end_key;
      }
      load_k(tile, next, left == 1);
      load_v(tile, key);
      key = next;
      if (left == kRequestAhead) request_next();
    }
    return key;
  }

  __device__ __forceinline__ std::int32_t next_key(const WorkTile& tile, std::int32_t key) {
    if constexpr (kConfig.block_mask) return walk_.next(tile.listed.words, tile.start_key);
    return tile::next_key_tile(key, tile.first_key, tile.end_key);
  }

  // Waits for the next published tile; false: there is none.
  __device__ __forceinline__ bool next_tile() {
    const PipelineState<kTileSlots> slot = state_after<kTileSlots>(tiles_++);
    ptx::mbarrier_wait(ptx::shared_address(&shared_.barriers.tile_full[slot.stage]), slot.phase);
    tile_ = &shared_.tiles[slot.stage];
    if constexpr (kConfig.starts_full()) v_prefetch_offset_ = v_prefetch_offset(*tile_);
    return tile_->index >= 0;
  }
  // Requests the next tile of the scheduler warp, unless it was published together with this one.
  __device__ __forceinline__ void request_next() {
    if (static_cast<std::int32_t>(tiles_) != requested_) return;
    requested_ += kCareful ? 1 : parameters_.scheduler.static_rounds.batched_tiles(requested_);
    ptx::mbarrier_arrive(ptx::shared_address(&shared_.barriers.tile_requested));
  }

  // There is no more work: consumers wait neither for keys after their last ones nor for Q.
  __device__ __forceinline__ void finish() {
    Barriers& barriers = shared_.barriers;
    if constexpr (kConfig.lazy_max) {
      wait_empty(barriers.k, k_);
      ptx::mbarrier_arrive(ptx::shared_address(&barriers.k.full[k_.stage]));
    }
    if constexpr (kLoadsQ) {
#pragma unroll 1
      for (int warpgroup = 0; warpgroup < kConfig.consumers(); ++warpgroup) {
        wait_empty(barriers.q[warpgroup], q_);
        ptx::mbarrier_arrive(ptx::shared_address(&barriers.q[warpgroup].full[q_.stage]));
      }
    }
  }

  // Once each warpgroup has computed the last scores of the tile whose Q was there before.
  __device__ __forceinline__ void load_q(const WorkTile& tile) {
    const CoordScale& coords = parameters_.scheduler.q_coords;
#pragma unroll 1
    for (int warpgroup = 0; warpgroup < kConfig.consumers(); ++warpgroup) {
      wait_empty(shared_.barriers.q[warpgroup], q_);
      tma_load_tile<tile::kRows, kHeadColumns, kConfig.panel_columns()>(
          shared_.q[q_.stage] + warpgroup * kQRowsBytes,
          {&parameters_.q, tile.q_start + tile.row + warpgroup * tile::kRows,
           tile.head * coords.head, tile.batch * coords.batch},
          shared_.barriers.q[warpgroup].full[q_.stage], ptx::L2Hint::kEvictFirst);
    }
  }
  __device__ __forceinline__ void load_next_q() {
    load_q(*tile_);
    expect_q();
  }
  // Consumers start the tile when its Q has arrived, so this also says that the tile is complete.
  __device__ __forceinline__ void expect_q() {
#pragma unroll 1
    for (int warpgroup = 0; warpgroup < kConfig.consumers(); ++warpgroup) {
      ptx::mbarrier_arrive_expect_tx(
          ptx::shared_address(&shared_.barriers.q[warpgroup].full[q_.stage]), kQRowsBytes);
    }
    q_.advance();
  }

  __device__ __forceinline__ static TmaSource source_of(const CUtensorMap& map,
                                                        const CoordScale& coords,
                                                        const WorkTile& tile, std::int32_t key) {
    return {&map, tile.k_start + key * kConfig.k_tile, tile.kv_head * coords.head,
            tile.batch * coords.batch};
  }
  // The first K of a query tile.
  __device__ __forceinline__ void load_first_k() {
    const WorkTile& tile = *tile_;
    if constexpr (kConfig.block_mask) {
      if (tile.listed.count > 0)
        walk_.begin(tile.listed.start_bits, tile.listed.last_word, tile.listed.last_visited);
    }
    load_k(tile, tile.start_key, key_tile_count<kConfig>(tile) == 1);
  }
  // is_last: of the query tile.
  __device__ __forceinline__ void load_k(const WorkTile& tile, std::int32_t key, bool is_last) {
    wait_empty(shared_.barriers.k, k_);
    if constexpr (kConfig.block_mask) {
      const bool none = tile.keys == KeyVisibility::kNone;
      shared_.key_tiles.of_stage[k_.stage] = {key * 2 + (is_last ? 1 : 0),
                                              none ? tile::kHiddenTile : walk_.bits()};
    }
    std::uint64_t& full = shared_.barriers.k.full[k_.stage];
    if (tile.keys == KeyVisibility::kNone) {
      ptx::mbarrier_arrive(ptx::shared_address(&full));
    } else {
      ptx::mbarrier_arrive_expect_tx(ptx::shared_address(&full), kConfig.k_bytes());
      tma_load_tile<kConfig.k_tile, kHeadColumns, kConfig.panel_columns()>(
          shared_.k[k_.stage], source_of(parameters_.k, parameters_.scheduler.k_coords, tile, key),
          full, ptx::L2Hint::kEvictLast);
      if (v_prefetch_offset_ >= 0 && (v_prefetch_offset_ + key) % 4 == 0) prefetch_v(tile, key);
    }
    k_.advance();
  }

  // V is loaded a step after its K, and has the shorter time to arrive. Where sequences are short,
  // every block soon comes to values that no block has read, and all blocks of a head do at once:
  // one block in four prefetches V to L2 with its K. Cycles: S 512 1.06, S 1024 1.02 (all four: S
  // 512 1.03); under edges, where blocks do not run in step, S 1024 causal 0.99. -1: no prefetch
  // for this query tile.
  __device__ __forceinline__ std::int32_t v_prefetch_offset(const WorkTile& tile) const {
    constexpr std::int32_t kFewKeyTiles = 16;
    const SchedulerParams& scheduler = parameters_.scheduler;
    const bool few =
        tile.end_key <= kFewKeyTiles && scheduler.window_left < 0 && scheduler.window_right < 0;
    return few ? tile.row / kConfig.q_tile : -1;
  }
  __device__ __forceinline__ void prefetch_v(const WorkTile& tile, std::int32_t key) const {
    tma_prefetch_tile<kConfig.value_dim>(source_of(parameters_.v, parameters_.v_coords, tile, key),
                                         ptx::L2Hint::kEvictLast);
  }

  // V goes to the consumers, or, of fp8, to the warps that transpose it.
  __device__ __forceinline__ StageBarriers<kMaxStages>& v_barriers() const {
    if constexpr (kConfig.fp8) {
      return shared_.loaded_v_barriers;
    } else {
      return shared_.barriers.v;
    }
  }
  __device__ __forceinline__ unsigned char* v_stage() const {
    if constexpr (kConfig.fp8) {
      return shared_.loaded_v[v_.stage];
    } else {
      return shared_.v[v_.stage];
    }
  }
  __device__ __forceinline__ void load_v(const WorkTile& tile, std::int32_t key) {
    wait_empty(v_barriers(), v_);
    std::uint64_t& full = v_barriers().full[v_.stage];
    if constexpr (kCareful) shared_.careful.non_finite[v_.stage] = false;
    if (tile.keys == KeyVisibility::kNone) {
      ptx::mbarrier_arrive(ptx::shared_address(&full));
    } else {
      ptx::mbarrier_arrive_expect_tx(ptx::shared_address(&full), kConfig.loaded_v_bytes());
      tma_load_tile<kConfig.k_tile, kValueColumns, kConfig.panel_columns()>(
          v_stage(), source_of(parameters_.v, parameters_.v_coords, tile, key), full,
          ptx::L2Hint::kEvictLast);
    }
    v_.advance();
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  const WorkTile* tile_ = nullptr;
  std::int32_t v_prefetch_offset_ = -1;
  std::uint32_t tiles_ = 0;     // taken
  std::int32_t requested_ = 1;  // of the scheduler warp
  PipelineState<kConfig.k_stages> k_;
  PipelineState<kLoadedVStages> v_;
  PipelineState<kConfig.q_stages> q_;
  std::conditional_t<kConfig.block_mask, tile::KeyTileWalk, NoKeyTiles> walk_;
};

}  // namespace tilewise::cuda::sm90
