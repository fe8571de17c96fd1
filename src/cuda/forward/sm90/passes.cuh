// The end of a block's fast pass and the begin of its careful one. The fast pass ends with the last
// query tile, or early (scheduler_warp.cuh); a careful pass (careful_steps.cuh) then computes the
// tiles that are listed or left, in the same kernel or in one of its own (forward.cuh). Where V has
// made a result infinite or NaN, that is mostly right: V is read again, which takes much less time
// than the tile, and only tiles with a reason are computed again.
#pragma once

#include "cuda/forward/sm90/listed_tiles.cuh"
#include "cuda/forward/sm90/scheduler_warp.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/named_barriers.h"
#include "cuda/tile/non_finite.cuh"
#include "cuda/tile/slow_path.cuh"
#include "math/integer.h"

namespace tilewise::cuda::sm90 {

struct KeyRange {
  std::int32_t begin;
  std::int32_t end;
};

// Reads V for the listed tiles. All consumer threads.
template <KernelConfig kConfig>
class ValueScan {
 public:
  __device__ ValueScan(const Parameters& parameters, unsigned& found)
      : problem_(parameters.problem), found_(found) {}

  // Whether an element of V that a row of the query tile must not see is not finite.
  __device__ bool leaks(const WorkTile& tile) const {
    const auto test = [](std::uint32_t pair) {
      return tile::non_finite_halves<kConfig.fp16>(pair);
    };
    if constexpr (kConfig.block_mask) return any_listed(tile, true, test);
    const std::int32_t last = math::min(tile.row + kConfig.q_tile, tile.q_len) - 1;
    const KeyRange seen = {tile.band.begin(tile.row), tile.band.end(last)};
    const std::int32_t loaded =
        math::min(math::round_up(seen.end, kConfig.k_tile), tile.band.key_end);
    return any(tile, {seen.begin / kConfig.k_tile * kConfig.k_tile, tile.band.begin(last)}, test) ||
           any(tile, {tile.band.end(tile.row), loaded}, test);
  }

  // Whether an element of V that a row of the query tile sees is large. Keys that are known to be
  // small are not read again.
  __device__ bool has_large(const WorkTile& tile) {
    if constexpr (kConfig.fp16) return false;
    const auto test = [](std::uint32_t pair) { return tile::large_halves(pair); };
    if constexpr (kConfig.block_mask) return any_listed(tile, false, test);
    const std::int32_t last = math::min(tile.row + kConfig.q_tile, tile.q_len) - 1;
    const KeyRange seen = {tile.band.begin(tile.row), tile.band.end(last)};
    if (batch_ != tile.batch || kv_head_ != tile.kv_head || seen.begin > small_.end ||
        seen.end < small_.begin) {
      batch_ = tile.batch;
      kv_head_ = tile.kv_head;
      small_ = {seen.begin, seen.begin};
    }
    if (any(tile, {seen.begin, small_.begin}, test) || any(tile, {small_.end, seen.end}, test))
      return true;
    small_ = {math::min(small_.begin, seen.begin), math::max(small_.end, seen.end)};
    return false;
  }

  __device__ void sync() const {
    ptx::named_barrier_sync(barrier_of(NamedBarrier::kConsumers, 0), kThreads);
  }
  __device__ static bool is_first() { return threadIdx.x == 128; }

 private:
  static constexpr std::uint32_t kThreads = 128 * kConfig.consumers();
  static constexpr int kLoads = 16;  // of a thread, before the search may end

  // The same for the key tiles of a list: all, or only partial ones.
  template <class Test>
  __device__ bool any_listed(const WorkTile& tile, bool only_partial, const Test& test) const {
    const ListedKeyTiles& listed = tile.listed;
    if (listed.count == 0) return false;
    tile::KeyTileWalk walk;
    walk.begin(listed.start_bits, listed.last_word, listed.last_visited);
    std::int32_t key = tile.start_key;
    for (std::int32_t left = listed.count;; --left) {
      const std::int32_t begin = key * kConfig.k_tile;
      const KeyRange keys = {begin, math::min(begin + kConfig.k_tile, tile.band.key_end)};
      if (!(only_partial && walk.bits() == tile::kFullTile) && any(tile, keys, test)) return true;
      if (left == 1) return false;
      key = walk.next(listed.words, tile.start_key);
    }
  }

  // Whether a 16-bit number of these keys passes the test, which says so by bit 15 of each half.
  // The search ends with the part that has one. Blocks begin at different keys: at the same one,
  // they would wait for the same part of the L2.
  template <class Test>
  __device__ bool any(const WorkTile& tile, KeyRange keys, const Test& test) const {
    const std::int32_t count = keys.end - keys.begin;
    if (count <= 0) return false;
    const problem::View& view = problem_.v;
    // A warp reads as many rows at once as it has lanes for, 16 bytes a lane.
    const auto chunks = static_cast<std::int32_t>(problem_.value_dim / 8);
    const std::int32_t at_once = 32 / chunks;
    const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x) % 32;
    const std::int32_t warp = static_cast<std::int32_t>(threadIdx.x) / 32 - 4;
    const std::int32_t step = static_cast<std::int32_t>(kThreads) / 32 * at_once;
    const std::int32_t row = warp * at_once + math::min(lane / chunks, at_once - 1);
    const std::int64_t batch = problem_.k_packed ? 0 : tile.batch;
    const auto* const from =
        static_cast<const std::uint16_t*>(view.data) +
        view.offset(batch, tile.kv_head, std::int64_t{tile.k_start} + keys.begin) +
        lane % chunks * 8;
    const std::int32_t shift = static_cast<std::int32_t>(blockIdx.x) % 16 * (count / 16);
    bool result = false;
#pragma unroll 1
    for (std::int32_t begin = 0; begin < count && !result; begin += kLoads * step) {
      uint4 loaded[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const std::int32_t own = math::min(begin + row + i * step, count - 1) + shift;
        loaded[i] =
            *reinterpret_cast<const uint4*>(from + (own < count ? own : own - count) * view.row);
      }
      std::uint32_t found = 0;
#pragma unroll
      for (const uint4& chunk : loaded)
        found |= test(chunk.x) | test(chunk.y) | test(chunk.z) | test(chunk.w);
      result = sync_or((found & tile::kHalvesFound) != 0);
    }
    return result;
  }

  __device__ bool sync_or(bool found) const {
    if (is_first()) found_ = 0;
    sync();
    if (found) found_ = 1;
    sync();
    const bool result = found_ != 0;
    sync();
    return result;
  }

  const Problem& problem_;
  unsigned& found_;
  std::int32_t batch_ = -1;
  std::int32_t kv_head_ = -1;
  KeyRange small_ = {};
};

// Leaves those of the listed tiles in their list that must be computed again. All consumer threads.
// NOTE: not inlined, so that the registers it needs cost the loops before it nothing.
template <KernelConfig kConfig>
__device__ __noinline__ void select_listed_tiles(const Parameters& parameters,
                                                 Shared<kConfig>& shared) {
  CarefulState<kConfig>& careful = shared.careful;
  const bool leaks_matter = careful.pass == 0;
  ValueScan<kConfig> scan(parameters, careful.found_value);
  const WorkTile& tile = shared.tiles[0];
  unsigned long long selected = 0;
  for (unsigned long long entry = careful.listed; entry != 0;) {
    unsigned long long& link = parameters.links[index_of(entry)];
    const unsigned long long next = link;
    scan.sync();
    if (scan.is_first()) {
      locate_tile<kConfig>(parameters, sequences_of(parameters.scheduler, shared.sequences),
                           index_of(entry), shared.tiles[0]);
    }
    scan.sync();
    bool large = (entry & kShiftBit) != 0;
    if (!large) {
      if (scan.is_first()) tile::count_slow_path(tile::SlowPath::kScannedValues);
      large = scan.has_large(tile);
    }
    if (large || (entry & kScoresBit) != 0 || (leaks_matter && scan.leaks(tile))) {
      if (scan.is_first()) link = selected;
      selected = large ? entry | kShiftBit : entry;
    }
    entry = next;
  }
  scan.sync();
  if (!scan.is_first()) return;
  careful.listed = 0;
  careful.selected = selected;
}

// The end of a pass, for all threads of the block.
template <KernelConfig kConfig>
__device__ __forceinline__ void meet_at_pass_end() {
  __syncwarp();
  ptx::named_barrier_sync(barrier_of(NamedBarrier::kPassEnd, 0), kConfig.threads());
}
// There all learn together whether there may be tiles for another one.
template <KernelConfig kConfig>
__device__ __forceinline__ bool may_go_on(const Shared<kConfig>& shared) {
  meet_at_pass_end<kConfig>();
  const CarefulState<kConfig>& careful = shared.careful;
  const bool more = (careful.reports & kAnyFailed) != 0 || careful.next_round >= 0;
  return uniform(more ? 1 : 0) != 0;
}
template <KernelConfig kConfig>
__device__ __forceinline__ void sync_pass(const Shared<kConfig>&) {
  ptx::named_barrier_sync(barrier_of(NamedBarrier::kPassBegin, 0), kConfig.threads());
}

// Between passes: the scheduler warp lists the last failed tiles, consumers select those that must
// be computed again, and the scheduler warp locates the first tile of the next pass. Returns
// whether there is one. For the consumers:
template <KernelConfig kConfig>
__device__ __forceinline__ bool begins_careful_pass(const Parameters& parameters,
                                                    Shared<kConfig>& shared) {
  if (!may_go_on(shared)) return false;
  sync_pass(shared);
  select_listed_tiles(parameters, shared);
  if (threadIdx.x == 128) {
    init_barriers<kConfig, true>(shared.barriers);
    shared.careful.reports = 0;
    ++shared.careful.pass;
  }
  sync_pass(shared);
  sync_pass(shared);
  return true;
}
// For the first warpgroup:
template <KernelConfig kConfig>
__device__ __forceinline__ bool begins_careful_pass(Shared<kConfig>& shared,
                                                    Scheduler<kConfig>& scheduler_warp) {
  if (!may_go_on(shared)) return false;
  // Rows of the pass are written over those of the one before.
  if constexpr (kConfig.has_epilogue_warps() && !kConfig.fp16) ptx::tma_store_wait();
  if (threadIdx.x == 32) scheduler_warp.list_failed_tiles();
  __syncwarp();
  sync_pass(shared);
  sync_pass(shared);
  if (threadIdx.x == 32) scheduler_warp.locate_first_careful();
  __syncwarp();
  sync_pass(shared);
  return true;
}

// From a fast kernel to the careful kernel after it: what the block could not compute, and what it
// has left. The first warpgroup writes it down;
template <KernelConfig kConfig>
__device__ __forceinline__ void hand_over(const Parameters& parameters, Shared<kConfig>& shared,
                                          Scheduler<kConfig>& scheduler_warp) {
  meet_at_pass_end<kConfig>();
  if (threadIdx.x != 32) return;
  scheduler_warp.list_failed_tiles();
  parameters.handovers[blockIdx.x] = {shared.careful.listed, shared.careful.next_round};
}
// one thread of the careful kernel reads it.
template <KernelConfig kConfig>
__device__ __forceinline__ void take_over(const Handover& handover,
                                          CarefulState<kConfig>& careful) {
  init_careful_state(careful);
  careful.listed = handover.listed;
  careful.next_round = handover.next_round;
  if (handover.listed != 0) careful.reports = kAnyFailed;
}

}  // namespace tilewise::cuda::sm90
