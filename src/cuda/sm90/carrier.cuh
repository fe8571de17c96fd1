// A carrier: a warp beside the producer, one for each consumer warpgroup. It brings the warpgroup's
// Q, and takes away its rows of out, which the warpgroup leaves in shared memory while it goes on
// with the next tile of queries.
#pragma once

#include "cuda/ptx/copy.cuh"
#include "cuda/sm90/epilogue.cuh"
#include "cuda/sm90/producer.cuh"
#include "cuda/sm90/shared.cuh"

namespace tilewise::cuda::sm90 {

template <KernelConfig kConfig>
class Carrier {
 public:
  __device__ Carrier(const Parameters& parameters, Shared<kConfig>& shared, int warpgroup)
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
      if (!kConfig.out_through_q()) wait_empty(shared_.barriers.q_empty[warpgroup_], place(slot));
      if (more && early && slot > 1) let_others(tile(slot - 1));
      if (more && slot > 0) bring(slot);
      admit(slot, more);
      for (std::uint32_t behind = kBehind; behind > (more ? kBehind - 1 : 0); --behind) {
        if (slot >= behind) take(slot - behind);
      }
    }
    // The careful path writes rows again.
    if (__any_sync(~0u, marked_) && is_first()) ptx::wait_stores();
    __syncwarp();
  }

 private:
  static constexpr int kPanels = kConfig.value_dim / tile::kPanelColumns;
  // Rows are stored so many tiles behind the one whose Q has been asked for: Q first, where it need
  // not wait for them.
  static constexpr std::uint32_t kBehind = kConfig.out_through_q() ? 1 : 2;

  __device__ __forceinline__ static bool is_first() { return threadIdx.x % 32 == 0; }
  __device__ __forceinline__ const Tile& tile(std::uint32_t slot) const {
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
  __device__ __forceinline__ static void let_others(const Tile& before) {
    constexpr std::int32_t kManyKeys = 8;
    constexpr unsigned kGroups = 4, kNanoseconds = 700;
    if (!kConfig.out_through_q() || key_count<kConfig>(before) < kManyKeys) return;
    __nanosleep(blockIdx.x % kGroups * kNanoseconds);
  }

  __device__ __forceinline__ void bring(std::uint32_t slot) {
    if (!is_first()) return;
    const Steps& steps = parameters_.finding.q_steps;
    const Tile& of = tile(slot);
    copy_rows<tile::kRows, kConfig.head_dim>(
        shared_.q[place(slot).stage] + warpgroup_ * tile::kRows * kConfig.head_dim * 2,
        {&parameters_.q, of.q_start + of.row + warpgroup_ * tile::kRows, of.head * steps.head,
         of.batch * steps.batch},
        q_full(slot), ptx::Keep::kBriefly);
  }
  // The consumers may begin the tile once its Q has come: it is complete.
  __device__ __forceinline__ void admit(std::uint32_t slot, bool more) {
    if (!is_first()) return;
    const std::uint32_t full = ptx::shared_address(&q_full(slot));
    if (more) {
      ptx::arrive_expecting(full, tile::kRows * kConfig.head_dim * 2);
    } else {
      ptx::arrive(full);
    }
  }

  // Stores the rows that the warpgroup leaves of a tile; then their place is free. NOTE: boxes of
  // the copy engine, where no row behind the tile's last is another sequence's: a loop over rows
  // takes issue slots from the consumers, and its time keeps the next Q waiting.
  __device__ __forceinline__ void take(std::uint32_t slot) {
    ptx::wait(ptx::shared_address(&shared_.barriers.out_full[warpgroup_]), slot % 2);
    const Tile& of = tile(slot);
    const std::int32_t first = warpgroup_ * tile::kRows;
    const std::int32_t rows = of.q_len - of.row - first;
    const std::uint32_t from = out_address(slot);
    ptx::fence_shared_for_async();
    __syncwarp();
    if (parameters_.mapped_stores && (rows >= tile::kRows || !parameters_.finding.q_packed)) {
      store_boxes(of, of.q_start + of.row + first, from);
    } else if (parameters_.wide_stores) {
      store_rows(of.out + first * parameters_.problem.out.row * 2, rows, from);
    }
    close(of, first, rows);
    if (is_first()) ptx::wait_stores_read();
    ptx::fence_shared_for_async();
    __syncwarp();
    if constexpr (!kConfig.out_through_q()) release(shared_.barriers.out_empty[warpgroup_]);
  }

  __device__ __forceinline__ std::uint32_t out_address(std::uint32_t slot) const {
    if constexpr (kConfig.out_through_q()) {
      return ptx::shared_address(shared_.q) + place(slot).offset(kConfig.q_bytes()) +
             static_cast<std::uint32_t>(warpgroup_ * tile::kRows * kConfig.head_dim * 2);
    } else {
      return ptx::shared_address(shared_.out.of_warpgroup[warpgroup_]);
    }
  }

  __device__ __forceinline__ void store_boxes(const Tile& of, std::int32_t row,
                                              std::uint32_t from) {
    if (!is_first()) return;
    const Steps& steps = parameters_.out_steps;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::store_tile(&parameters_.out, panel * tile::kPanelColumns, row, of.head * steps.head,
                      of.batch * steps.batch, from + panel * tile::kRows * tile::kPanelRowBytes);
    }
    ptx::commit_stores();
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
        const uint4 chunk = ptx::load_chunk(get + panel * tile::kRows * tile::kPanelRowBytes);
        if (panel * tile::kPanelColumns + lane % 8 * 8 < parameters_.problem.value_dim)
          ptx::store_chunk(to + panel * tile::kPanelRowBytes, chunk);
      }
      // Four rows further is another chunk of the swizzle.
      get = (get ^ 4 * tile::kChunkBytes) + 4 * tile::kPanelRowBytes;
      to += parameters_.out_step;
    }
  }

  // lse, and the marks of warps with a row for the careful path: a lane has one row of each half.
  __device__ __forceinline__ void close(const Tile& of, std::int32_t first, std::int32_t rows) {
    const int lane = threadIdx.x % 32;
    const Leaving& leaving = shared_.leaving[warpgroup_];
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const std::int32_t own = half * 32 + lane;
      const RowSum row = leaving.rows[own];
      const math::SoftmaxState<float> state = {row.max, row.sum};
      float lse = sm90::close(state, parameters_.lse_unit).lse;
      if (of.sink != -math::Limits<float>::kInfinity)
        lse = sm90::close(state, of.sink, parameters_.lse_unit).lse;
      if (of.lse != nullptr && own < rows)
        ptx::store_number(of.lse + (first + own) * parameters_.problem.lse.row * 4, lse);
      const bool redo =
          own < rows && (leaving.redo[own / tile::kWarpRows] ||
                         must_redo<kConfig.keeps>(of, of.row + first + own, row.max, row.sum));
      const unsigned marked = __ballot_sync(~0u, redo) >> (lane & tile::kWarpRows);
      if (lane % tile::kWarpRows == 0 && (marked & 0xFFFFu) != 0) {
        constexpr std::int64_t kWarps = kConfig.q_tile / tile::kWarpRows;
        mark(parameters_, of.index * kWarps + (first + own) / tile::kWarpRows, shared_.last_mark);
        marked_ = true;
      }
    }
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  int warpgroup_;
  bool marked_ = false;  // by this lane
};

}  // namespace tilewise::cuda::sm90
