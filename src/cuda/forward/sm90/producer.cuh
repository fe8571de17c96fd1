// The producer: one thread that asks the copy engine for K and V of the tiles that the describer
// names, and for Q where no carrier does (carrier.cuh).
#pragma once

#include "cuda/forward/sm90/shared.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/scheduler.h"
#include "cuda/tile/swizzle.h"

namespace tilewise::cuda::sm90 {

// Where a tile is to come from; head and batch are coordinates of the map.
struct TmaSource {
  const CUtensorMap* map;
  std::int32_t row;
  std::int32_t head;
  std::int32_t batch;
};

// A tile of kRows rows into its panels. `full` is to be told how much will come, before or after.
template <int kRows, int kColumns>
__device__ __forceinline__ void tma_load_tile(unsigned char* to, const TmaSource& from,
                                              std::uint64_t& full, ptx::L2Hint keep) {
  const std::uint32_t barrier = ptx::shared_address(&full);
#pragma unroll
  for (int panel = 0; panel < kColumns / tile::kPanelColumns; ++panel) {
    ptx::tma_load(ptx::shared_address(to + panel * kRows * tile::kPanelRowBytes), from.map,
                  panel * tile::kPanelColumns, from.row, from.head, from.batch, barrier, keep);
  }
}

// K is one tile ahead of V, as the consumers are, also from one tile of queries to the next: its
// first K comes before the last V of the one before. So does its Q where there is a second place
// for it; else Q would wait for the last scores, and V with it.
template <KernelConfig kConfig>
class Producer {
 public:
  __device__ Producer(const Parameters& parameters, Shared<kConfig>& shared)
      : parameters_(parameters), shared_(shared) {}

  __device__ __forceinline__ void run() {
    // The first tile is located, though not complete: what is asked for comes meanwhile.
    tile_ = &shared_.tiles[0];
    if (tile_->index >= 0) {
      load_k(*tile_, tile_->start_key);
      if constexpr (kHasQ) load_q(*tile_);
    }
    if (!take()) return close();
    if constexpr (kHasQ) expect_q();
#pragma unroll 1
    for (;;) {
      const WorkTile& tile = *tile_;
      std::int32_t key = tile.start_key;
      std::int32_t left = key_count<kConfig>(tile);
      if (left <= kScheduleAhead) request_next();
#pragma unroll 1
      while (--left > 0) {
        std::int32_t behind = tile::next_key_tile(key, tile.first_key, tile.end_key);
        if constexpr (kConfig.fused_edges) {
          if (tile.keys == KeyVisibility::kFusedEdges && left <= 2)
            behind = left == 2 ? tile.first_key - 1 : tile.end_key;
        }
        load_k(tile, behind);
        load_v(tile, key);
        key = behind;
        if (left == kScheduleAhead) request_next();
      }
      const bool more = take();
      if (more) load_k(*tile_, tile_->start_key);
      if constexpr (kHasQ && kEarlyQ) {
        if (more) load_next_q();
      }
      load_v(tile, key);
      if (!more) return close();
      if constexpr (kHasQ && !kEarlyQ) load_next_q();
    }
  }

 private:
  // With so many tiles of keys left a tile of queries has the next one described. Late: work that
  // is taken early is not there for a block that would begin it sooner.
  static constexpr std::int32_t kScheduleAhead = 4;
  static constexpr bool kHasQ = !kConfig.has_epilogue_warps();
  static constexpr bool kEarlyQ = kConfig.q_stages > 1;

  // Goes on to the next tile, once it is described; false: there is none.
  __device__ __forceinline__ bool take() {
    const Place<kTileSlots> place = place_of<kTileSlots>(tiles_++);
    wait_full(shared_.barriers.tile_full, place);
    tile_ = &shared_.tiles[place.stage];
    if constexpr (kConfig.starts_full()) v_prefetch_offset_ = v_prefetch_offset(*tile_);
    return tile_->index >= 0;
  }
  // Has the next one described, unless it was together with this one.
  __device__ __forceinline__ void request_next() {
    if (static_cast<std::int32_t>(tiles_) != requested_) return;
    requested_ += parameters_.scheduler.static_rounds.batched_tiles(requested_);
    ptx::mbarrier_arrive(ptx::shared_address(&shared_.barriers.tile_requested));
  }

  // There is no more work: nor are there keys for which consumers wait behind their last ones.
  __device__ __forceinline__ void close() {
    if constexpr (kConfig.lazy_max) {
      wait_empty(shared_.barriers.k_empty, k_place_);
      ptx::mbarrier_arrive(ptx::shared_address(&shared_.barriers.k_full[k_place_.stage]));
    }
    if constexpr (kHasQ) {
#pragma unroll 1
      for (int warpgroup = 0; warpgroup < kConfig.consumers(); ++warpgroup) {
        wait_empty(shared_.barriers.q_empty[warpgroup], q_place_);
        ptx::mbarrier_arrive(
            ptx::shared_address(&shared_.barriers.q_full[warpgroup][q_place_.stage]));
      }
    }
  }

  // Once each warpgroup has multiplied the last scores of the tile that was there before.
  __device__ __forceinline__ void load_q(const WorkTile& tile) {
    const CoordScale& steps = parameters_.scheduler.q_coords;
#pragma unroll 1
    for (int warpgroup = 0; warpgroup < kConfig.consumers(); ++warpgroup) {
      wait_empty(shared_.barriers.q_empty[warpgroup], q_place_);
      tma_load_tile<tile::kRows, kConfig.head_dim>(
          shared_.q[q_place_.stage] + warpgroup * tile::kRows * kConfig.head_dim * 2,
          {&parameters_.q, tile.q_start + tile.row + warpgroup * tile::kRows,
           tile.head * steps.head, tile.batch * steps.batch},
          shared_.barriers.q_full[warpgroup][q_place_.stage], ptx::L2Hint::kEvictFirst);
    }
  }
  __device__ __forceinline__ void load_next_q() {
    load_q(*tile_);
    expect_q();
  }
  // The consumers may begin the tile once its Q has come: it is complete.
  __device__ __forceinline__ void expect_q() {
#pragma unroll 1
    for (int warpgroup = 0; warpgroup < kConfig.consumers(); ++warpgroup) {
      ptx::mbarrier_arrive_expect_tx(
          ptx::shared_address(&shared_.barriers.q_full[warpgroup][q_place_.stage]),
          tile::kRows * kConfig.head_dim * 2);
    }
    q_place_.advance();
  }

  __device__ __forceinline__ static TmaSource tile_of(const CUtensorMap& map,
                                                      const CoordScale& steps, const WorkTile& tile,
                                                      std::int32_t key) {
    return {&map, tile.k_start + key * kConfig.k_tile, tile.kv_head * steps.head,
            tile.batch * steps.batch};
  }
  __device__ __forceinline__ void load_k(const WorkTile& tile, std::int32_t key) {
    wait_empty(shared_.barriers.k_empty, k_place_);
    std::uint64_t& full = shared_.barriers.k_full[k_place_.stage];
    if (tile.keys == KeyVisibility::kNone) {
      ptx::mbarrier_arrive(ptx::shared_address(&full));
    } else {
      ptx::mbarrier_arrive_expect_tx(ptx::shared_address(&full), kConfig.k_bytes());
      tma_load_tile<kConfig.k_tile, kConfig.head_dim>(
          shared_.k[k_place_.stage],
          tile_of(parameters_.k, parameters_.scheduler.k_coords, tile, key), full,
          ptx::L2Hint::kEvictLast);
      if (v_prefetch_offset_ >= 0 && (v_prefetch_offset_ + key) % 4 == 0) prefetch_v(tile, key);
    }
    k_place_.advance();
  }

  // V is asked for a step later than its K, and has the shorter time to come from memory. Where
  // sequences are short, every block soon comes to values that nobody has read, and all blocks of a
  // head at once: one in four has them brought to L2 with its K. Cycles: S 512 1.06, S 1024 1.02
  // (each block all of them: S 512 1.03); not under edges, where blocks do not go together: S 1024
  // causal 0.99. -1: not in this tile of queries.
  __device__ __forceinline__ std::int32_t v_prefetch_offset(const WorkTile& tile) const {
    constexpr std::int32_t kFewKeys = 16;
    const SchedulerParams& scheduler = parameters_.scheduler;
    const bool few =
        tile.end_key <= kFewKeys && scheduler.window_left < 0 && scheduler.window_right < 0;
    return few ? tile.row / kConfig.q_tile : -1;
  }
  __device__ __forceinline__ void prefetch_v(const WorkTile& tile, std::int32_t key) const {
    const TmaSource from = tile_of(parameters_.v, parameters_.v_coords, tile, key);
#pragma unroll
    for (int panel = 0; panel < kConfig.value_dim / tile::kPanelColumns; ++panel) {
      ptx::tma_prefetch(from.map, panel * tile::kPanelColumns, from.row, from.head, from.batch,
                        ptx::L2Hint::kEvictLast);
    }
  }

  __device__ __forceinline__ void load_v(const WorkTile& tile, std::int32_t key) {
    wait_empty(shared_.barriers.v_empty, v_place_);
    std::uint64_t& full = shared_.barriers.v_full[v_place_.stage];
    if (tile.keys == KeyVisibility::kNone) {
      ptx::mbarrier_arrive(ptx::shared_address(&full));
    } else {
      ptx::mbarrier_arrive_expect_tx(ptx::shared_address(&full), kConfig.v_bytes());
      tma_load_tile<kConfig.k_tile, kConfig.value_dim>(
          shared_.v[v_place_.stage], tile_of(parameters_.v, parameters_.v_coords, tile, key), full,
          ptx::L2Hint::kEvictLast);
    }
    v_place_.advance();
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  const WorkTile* tile_ = nullptr;
  std::int32_t v_prefetch_offset_ = -1;  // see foretelling()
  std::uint32_t tiles_ = 0;              // taken,
  std::int32_t requested_ = 1;           // and described, or to be
  Place<kConfig.k_stages> k_place_;
  Place<kConfig.v_stages> v_place_;
  Place<kConfig.q_stages> q_place_;
};

}  // namespace tilewise::cuda::sm90
