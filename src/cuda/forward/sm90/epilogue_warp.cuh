// An epilogue warp: one for each consumer warpgroup, in the producer's warpgroup. It loads the
// warpgroup's Q, and stores the rows of out that the warpgroup stages in shared memory while it
// goes on with the next query tile.
#pragma once

#include "cuda/forward/sm90/epilogue.cuh"
#include "cuda/forward/sm90/shared.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/sm90/tma_tile.cuh"

namespace tilewise::cuda::sm90 {

template <KernelConfig kConfig>
class EpilogueWarp {
 public:
  __device__ EpilogueWarp(const Parameters& parameters, Shared<kConfig>& shared, int warpgroup)
      : parameters_(parameters), shared_(shared), warpgroup_(warpgroup) {}

  // All query tiles, as the consumers take them. Q of a tile is loaded as soon as the tile is
  // published and a stage of Q is free: after the last scores of the tile two before, or, where out
  // is staged in the place of Q, once that is stored.
  __device__ __forceinline__ void run() {
    // The first tile is located, though not complete: its Q is loaded meanwhile.
    if (shared_.tiles[0].index >= 0) load_q(0);
    bool more = true;
    for (std::uint32_t slot = 0; more; ++slot) {
      const PipelineState<kTileSlots> published = state_after<kTileSlots>(slot);
      ptx::mbarrier_wait(ptx::shared_address(&shared_.barriers.tile_full[published.stage]),
                         published.phase);
      more = tile(slot).index >= 0;
      if (!kConfig.stages_out_in_q()) wait_empty(q_barriers(), q_state(slot));
      if (more && slot > 0) load_q(slot);
      expect_q(slot, more);
      for (std::uint32_t delay = kStoreDelay; delay > (more ? kStoreDelay - 1 : 0); --delay) {
        if (slot >= delay) store_out(slot - delay);
      }
    }
    // Rows of a careful pass are written over these.
    if (failed_ && is_first()) ptx::tma_store_wait();
    __syncwarp();
  }

 private:
  static constexpr int kPanels = kConfig.value_dim / tile::kPanelColumns;
  // Out is stored so many tiles after its Q was loaded: the next Q first, where it need not wait
  // for the store.
  static constexpr std::uint32_t kStoreDelay = kConfig.stages_out_in_q() ? 1 : 2;

  __device__ __forceinline__ static bool is_first() { return threadIdx.x % 32 == 0; }
  __device__ __forceinline__ const WorkTile& tile(std::uint32_t slot) const {
    return shared_.tiles[slot % kTileSlots];
  }
  __device__ __forceinline__ static PipelineState<kConfig.q_stages> q_state(std::uint32_t slot) {
    return state_after<kConfig.q_stages>(slot);
  }
  __device__ __forceinline__ StageBarriers<kMaxQStages>& q_barriers() const {
    return shared_.barriers.q[warpgroup_];
  }

  __device__ __forceinline__ void load_q(std::uint32_t slot) {
    if (!is_first()) return;
    const CoordScale& coords = parameters_.scheduler.q_coords;
    const WorkTile& of = tile(slot);
    tma_load_tile<tile::kRows, kConfig.head_dim>(
        shared_.q[q_state(slot).stage] + warpgroup_ * tile::kRows * kConfig.head_dim * 2,
        {&parameters_.q, of.q_start + of.row + warpgroup_ * tile::kRows, of.head * coords.head,
         of.batch * coords.batch},
        q_barriers().full[q_state(slot).stage], ptx::L2Hint::kEvictFirst);
  }
  // Consumers start the tile when its Q has arrived, so this also says that the tile is complete.
  __device__ __forceinline__ void expect_q(std::uint32_t slot, bool more) {
    if (!is_first()) return;
    const std::uint32_t full = ptx::shared_address(&q_barriers().full[q_state(slot).stage]);
    if (more) {
      ptx::mbarrier_arrive_expect_tx(full, tile::kRows * kConfig.head_dim * 2);
    } else {
      ptx::mbarrier_arrive(full);
    }
  }

  // Stores the staged rows of a tile; then their place is free. NOTE: by TMA, where the rows after
  // the tile's last are outside the tensor: a loop over rows takes issue slots from the consumers,
  // and keeps the next Q waiting.
  __device__ __forceinline__ void store_out(std::uint32_t slot) {
    StageBarriers<1>& barriers = shared_.barriers.out[warpgroup_];
    ptx::mbarrier_wait(ptx::shared_address(&barriers.full[0]), slot % 2);
    const WorkTile& of = tile(slot);
    const std::int32_t first = warpgroup_ * tile::kRows;
    const std::int32_t rows = of.q_len - of.row - first;
    const std::uint32_t from = out_address(slot);
    ptx::fence_proxy_async();
    __syncwarp();
    if (parameters_.tma_stores && (rows >= tile::kRows || !parameters_.scheduler.varlen_q)) {
      store_boxes(of, of.q_start + of.row + first, from);
    } else if (parameters_.vector_stores) {
      store_rows(of.out + first * parameters_.problem.out.row * 2, rows, from);
    }
    store_lse(slot, first, rows);
    if (is_first()) ptx::tma_store_wait_read();
    ptx::fence_proxy_async();
    __syncwarp();
    if constexpr (!kConfig.stages_out_in_q()) release(barriers.empty[0]);
  }

  __device__ __forceinline__ std::uint32_t out_address(std::uint32_t slot) const {
    if constexpr (kConfig.stages_out_in_q()) {
      return ptx::shared_address(shared_.q) + q_state(slot).offset(kConfig.q_bytes()) +
             static_cast<std::uint32_t>(warpgroup_ * tile::kRows * kConfig.head_dim * 2);
    } else {
      return ptx::shared_address(shared_.out.of_warpgroup[warpgroup_]);
    }
  }

  __device__ __forceinline__ void store_boxes(const WorkTile& of, std::int32_t row,
                                              std::uint32_t from) {
    if (!is_first()) return;
    const CoordScale& coords = parameters_.out_coords;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::tma_store(&parameters_.out, panel * tile::kPanelColumns, row, of.head * coords.head,
                     of.batch * coords.batch, from + panel * tile::kRows * tile::kPanelRowBytes);
    }
    ptx::tma_store_commit();
  }

  // Eight lanes store 128 bytes of a row.
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

  // Stores lse, and reports the tile if the fast steps have failed: a lane has one row of each
  // half.
  __device__ __forceinline__ void store_lse(std::uint32_t slot, std::int32_t first,
                                            std::int32_t rows) {
    const WorkTile& of = tile(slot);
    const int lane = threadIdx.x % 32;
    const StagedOutput& staged = shared_.staged[warpgroup_];
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const std::int32_t own = half * 32 + lane;
      const RowSum row = staged.rows[own];
      const math::SoftmaxState<float> state = {row.max, row.sum};
      float lse = tile::finalise_approx(state, parameters_.ln2).lse;
      if (of.sink != -math::Limits<float>::kInfinity)
        lse = tile::finalise_approx(state, of.sink, parameters_.ln2).lse;
      if (of.lse != nullptr && own < rows)
        ptx::st_global(of.lse + (first + own) * parameters_.problem.lse.row * 4, lse);
      const bool scores =
          own < rows && scores_failed<kConfig>(of, of.row + first + own, row.max, row.sum);
      const bool non_finite = staged.non_finite[own / tile::kWarpRows];
      if (!__any_sync(~0u, scores || non_finite)) continue;
      failed_ = true;
      report_failure(shared_.careful.reports, slot,
                     (scores ? kFailedScores : 0) | (non_finite ? kNonFiniteOut : 0));
    }
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  int warpgroup_;
  bool failed_ = false;  // the fast steps, in a query tile
};

}  // namespace tilewise::cuda::sm90
