// A carrier: a warp beside the producer, one for each consumer warpgroup. It brings the warpgroup's
// Q, and takes away its rows of out, which the warpgroup leaves in shared memory while it goes on
// with the next tile of queries.
#pragma once

#include "cuda/forward/sm90/epilogue.cuh"
#include "cuda/forward/sm90/producer.cuh"
#include "cuda/forward/sm90/shared.cuh"
#include "cuda/ptx/tma.cuh"

namespace tilewise::cuda::sm90 {

template <KernelConfig kConfig>
class EpilogueWarp {
 public:
  __device__ EpilogueWarp(const Parameters& parameters, Shared<kConfig>& shared, int warpgroup)
      : parameters_(parameters), shared_(shared), warpgroup_(warpgroup) {}

  // Every tile of queries, as the consumers take them. Q of one is asked for as soon as the tile is
  // described and the place free: behind the last scores of the last but one, or, where rows of out
  // leave through it, once those are stored.
  __device__ __forceinline__ void run() {
    // The first one is located, though not complete: what is asked for comes meanwhile.
    if (shared_.tiles[0].index >= 0) bring(0);
    bool more = true;
    for (std::uint32_t slot = 0; more; ++slot) {
      const Place<kTileSlots> described = place_of<kTileSlots>(slot);
      const bool early = is_full(shared_.barriers.tile_full, described);
      wait_full(shared_.barriers.tile_full, described);
      more = tile(slot).index >= 0;
      if (!kConfig.stages_out_in_q()) wait_empty(shared_.barriers.q_empty[warpgroup_], place(slot));
      if (more && early && slot > 1) stagger(tile(slot - 1));
      if (more && slot > 0) bring(slot);
      admit(slot, more);
      for (std::uint32_t behind = kStoreDelay; behind > (more ? kStoreDelay - 1 : 0); --behind) {
        if (slot >= behind) take(slot - behind);
      }
    }
    // The non_finite_pass path writes rows again.
    if (__any_sync(~0u, flagged_) && is_first()) ptx::tma_store_wait();
    __syncwarp();
  }

 private:
  static constexpr int kPanels = kConfig.value_dim / tile::kPanelColumns;
  // Rows are stored so many tiles behind the one whose Q has been asked for: Q first, where it need
  // not wait for them.
  static constexpr std::uint32_t kStoreDelay = kConfig.stages_out_in_q() ? 1 : 2;

  __device__ __forceinline__ static bool is_first() { return threadIdx.x % 32 == 0; }
  __device__ __forceinline__ const WorkTile& tile(std::uint32_t slot) const {
    return shared_.tiles[slot % kTileSlots];
  }
  __device__ __forceinline__ static Place<kConfig.q_stages> place(std::uint32_t slot) {
    return place_of<kConfig.q_stages>(slot);
  }
  __device__ __forceinline__ std::uint64_t& q_full(std::uint32_t slot) const {
    return shared_.barriers.q_full[warpgroup_][place(slot).stage];
  }

  // Blocks whose tiles are alike come to ask for Q at the same time, and keys and values wait while
  // memory brings it. While the tile of queries before has many keys left, some ask later: the
  // window of 1024 takes 1 % fewer cycles.
  __device__ __forceinline__ static void stagger(const WorkTile& before) {
    constexpr std::int32_t kManyKeys = 8;
    constexpr unsigned kGroups = 4, kNanoseconds = 700;
    if (!kConfig.stages_out_in_q() || key_count<kConfig>(before) < kManyKeys) return;
    __nanosleep(blockIdx.x % kGroups * kNanoseconds);
  }

  __device__ __forceinline__ void bring(std::uint32_t slot) {
    if (!is_first()) return;
    const CoordScale& steps = parameters_.scheduler.q_coords;
    const WorkTile& of = tile(slot);
    tma_load_tile<tile::kRows, kConfig.head_dim>(
        shared_.q[place(slot).stage] + warpgroup_ * tile::kRows * kConfig.head_dim * 2,
        {&parameters_.q, of.q_start + of.row + warpgroup_ * tile::kRows, of.head * steps.head,
         of.batch * steps.batch},
        q_full(slot), ptx::L2Hint::kEvictFirst);
  }
  // The consumers may begin the tile once its Q has come: it is complete.
  __device__ __forceinline__ void admit(std::uint32_t slot, bool more) {
    if (!is_first()) return;
    const std::uint32_t full = ptx::shared_address(&q_full(slot));
    if (more) {
      ptx::mbarrier_arrive_expect_tx(full, tile::kRows * kConfig.head_dim * 2);
    } else {
      ptx::mbarrier_arrive(full);
    }
  }

  // Stores the rows that the warpgroup leaves of a tile; then their place is free. NOTE: boxes of
  // the copy engine, where no row behind the tile's last is another sequence's: a loop over rows
  // takes issue slots from the consumers, and its time keeps the next Q waiting.
  __device__ __forceinline__ void take(std::uint32_t slot) {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.barriers.out_full[warpgroup_]), slot % 2);
    const WorkTile& of = tile(slot);
    const std::int32_t first = warpgroup_ * tile::kRows;
    const std::int32_t rows = of.q_len - of.row - first;
    const std::uint32_t from = out_address(slot);
    ptx::fence_proxy_async();
    __syncwarp();
    if (parameters_.tma_stores && (rows >= tile::kRows || !parameters_.scheduler.q_packed)) {
      store_boxes(of, of.q_start + of.row + first, from);
    } else if (parameters_.vector_stores) {
      store_rows(of.out + first * parameters_.problem.out.row * 2, rows, from);
    }
    close(of, first, rows);
    if (is_first()) ptx::tma_store_wait_read();
    ptx::fence_proxy_async();
    __syncwarp();
    if constexpr (!kConfig.stages_out_in_q()) release(shared_.barriers.out_empty[warpgroup_]);
  }

  __device__ __forceinline__ std::uint32_t out_address(std::uint32_t slot) const {
    if constexpr (kConfig.stages_out_in_q()) {
      return ptx::shared_address(shared_.q) + place(slot).offset(kConfig.q_bytes()) +
             static_cast<std::uint32_t>(warpgroup_ * tile::kRows * kConfig.head_dim * 2);
    } else {
      return ptx::shared_address(shared_.out.of_warpgroup[warpgroup_]);
    }
  }

  __device__ __forceinline__ void store_boxes(const WorkTile& of, std::int32_t row,
                                              std::uint32_t from) {
    if (!is_first()) return;
    const CoordScale& steps = parameters_.out_coords;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::tma_store(&parameters_.out, panel * tile::kPanelColumns, row, of.head * steps.head,
                     of.batch * steps.batch, from + panel * tile::kRows * tile::kPanelRowBytes);
    }
    ptx::tma_store_commit();
  }

  // Eight lanes 128 bytes of a row.
  __device__ __forceinline__ void store_rows(char* to, std::int32_t rows, std::uint32_t from) {
    const int lane = threadIdx.x % 32;
    std::uint32_t get = from + tile::swizzled(lane / 8, lane % 8 * tile::kChunkBytes);
    to += (lane / 8 * parameters_.problem.out.row + lane % 8 * 8) * 2;
#pragma unroll 1
    for (std::int32_t row = lane / 8; row < rows && row < tile::kRows; row += 4) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const uint4 chunk = ptx::ld_shared_v4(get + panel * tile::kRows * tile::kPanelRowBytes);
        if (panel * tile::kPanelColumns + lane % 8 * 8 < parameters_.problem.value_dim)
          ptx::st_global_v4(to + panel * tile::kPanelRowBytes, chunk);
      }
      // Four rows further is another chunk of the swizzle.
      get = (get ^ 4 * tile::kChunkBytes) + 4 * tile::kPanelRowBytes;
      to += parameters_.out_step;
    }
  }

  // lse, and the marks of warps with a row for the non_finite_pass path: a lane has one row of each
  // half.
  __device__ __forceinline__ void close(const WorkTile& of, std::int32_t first, std::int32_t rows) {
    const int lane = threadIdx.x % 32;
    const StagedOutput& staged = shared_.staged[warpgroup_];
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const std::int32_t own = half * 32 + lane;
      const RowSum row = staged.rows[own];
      const math::SoftmaxState<float> state = {row.max, row.sum};
      float lse = sm90::finalise(state, parameters_.ln2).lse;
      if (of.sink != -math::Limits<float>::kInfinity)
        lse = sm90::finalise(state, of.sink, parameters_.ln2).lse;
      if (of.lse != nullptr && own < rows)
        ptx::st_global(of.lse + (first + own) * parameters_.problem.lse.row * 4, lse);
      const bool recompute = own < rows && (staged.recompute[own / tile::kWarpRows] ||
                                            needs_recompute<kConfig.lazy_max>(
                                                of, of.row + first + own, row.max, row.sum));
      const unsigned flagged = __ballot_sync(~0u, recompute) >> (lane & tile::kWarpRows);
      if (lane % tile::kWarpRows == 0 && (flagged & 0xFFFFu) != 0) {
        constexpr std::int64_t kWarps = kConfig.q_tile / tile::kWarpRows;
        flag_rows(parameters_, of.index * kWarps + (first + own) / tile::kWarpRows,
                  shared_.last_flagged);
        flagged_ = true;
      }
    }
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  int warpgroup_;
  bool flagged_ = false;  // by this lane
};

}  // namespace tilewise::cuda::sm90
