// The query tiles of a block that its fast steps could not compute, as lists in the workspace. A
// tile is listed because scores of a row have failed (scores_failed()), or because a result is not
// finite: then V may hold what is not finite, or numbers so large that the unnormalised sum has
// overflowed.
#pragma once

#include "cuda/forward/sm90/reports.cuh"
#include "cuda/forward/sm90/shared.cuh"
#include "math/integer.h"

namespace tilewise::cuda::sm90 {

static_assert(kReportSlots == kTileSlots);

// An entry of a list is the number of a tile, from 1 on, and bits; 0 ends a list. A tile's link
// holds the entry after it.
inline constexpr unsigned long long kShiftBit = 1ull << 40;   // the tile needs a shift
inline constexpr unsigned long long kScoresBit = 1ull << 41;  // its scores have failed

__device__ __forceinline__ std::int32_t index_of(unsigned long long entry) {
  return static_cast<std::int32_t>(entry & (kShiftBit - 1)) - 1;
}

// Whether rows of a query tile see different keys.
template <KernelConfig kConfig>
__device__ __forceinline__ bool has_cut_keys(const WorkTile& tile) {
  if constexpr (kConfig.block_mask) return tile.keys == KeyVisibility::kCut;
  const bool fused = kConfig.fused_edges && tile.keys == KeyVisibility::kFusedEdges;
  const std::int32_t end = tile.end_key * kConfig.k_tile;
  const std::int32_t last = math::min(tile.row + kConfig.q_tile, tile.q_len) - 1;
  return fused || !tile.band.full(tile.row, last, tile.first_key * kConfig.k_tile,
                                  math::min(end, tile.band.key_end));
}

// Lists the query tile of a slot that is to be used again, or that the pass ends with, where its
// steps have failed. One thread.
template <KernelConfig kConfig>
__device__ __forceinline__ void list_failed_tile(const Parameters& parameters,
                                                 Shared<kConfig>& shared, std::uint32_t slot) {
  CarefulState<kConfig>& careful = shared.careful;
  const unsigned failed = take_failures(careful.reports, slot);
  if (failed == 0) return;
  // After a careful pass only large values are left as a reason. fp16 has none.
  const bool fast = careful.pass == 0;
  if (!fast &&
      (kConfig.fp16 || careful.searched[slot % kTileSlots] || (failed & kNonFiniteOut) == 0))
    return;
  const std::int32_t index = shared.tiles[slot % kTileSlots].index;
  const unsigned long long scores = fast && (failed & kFailedScores) != 0 ? kScoresBit : 0;
  const unsigned long long shift =
      fast && !kConfig.fp16 && take_large_values(careful.reports, slot) ? kShiftBit : 0;
  parameters.links[index] =
      atomicExch(&careful.listed, (static_cast<unsigned long long>(index) + 1) | scores | shift);
}

// Takes a selected tile. Returns its index, or -1; shifted: whether it needs a shift.
template <KernelConfig kConfig>
__device__ __forceinline__ std::int32_t take_selected_tile(const Parameters& parameters,
                                                           CarefulState<kConfig>& careful,
                                                           bool& shifted) {
  const unsigned long long entry = careful.selected;
  if (entry == 0) return -1;
  shifted = (entry & kShiftBit) != 0;
  careful.selected = parameters.links[index_of(entry)];
  return index_of(entry);
}

}  // namespace tilewise::cuda::sm90
