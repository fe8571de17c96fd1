// One block of 32 keys of the forward pass on AMX, from the scores of a panel of 32 queries to
// probabilities; and the scratch of a worker.
#pragma once

#include "cpu/amx/non_finite.h"
#include "cpu/amx/softmax.h"
#include "cpu/amx/tile_product.h"
#include "cpu/common/dropout.h"
#include "cpu/common/non_finite.h"
#include "cpu/forward/block.h"
#include "math/integer.h"

#if TILEWISE_HAS_AMX

namespace tilewise::cpu::TILEWISE_TARGET {

// A worker keeps the tiles of K and V that it has packed, up to kPackedBytes of its L2, for the
// next block of queries on the same keys. If the keys take more, it keeps one tile, and the L2 is
// for panels: a tile is then packed once for all panels of a block (1.18 times as fast at 8192 keys
// as 16 panels and 1 MB). Packing a tile costs as much as the products of 2.4 panels with it
// (docs/matrix-unit.md), so that a block has kFewestAmxPanels panels as long as that leaves enough
// blocks.
inline constexpr std::int64_t kPackedBytes = std::int64_t{1} << 20;
inline constexpr std::int64_t kMostPackedTiles = 8;
inline constexpr std::int64_t kPanelBytes = std::int64_t{5} << 18;
inline constexpr std::int64_t kFewAmxPanels = 16;
inline constexpr std::int64_t kMostAmxPanels = 48;
inline constexpr std::int64_t kFewestAmxPanels = 4;

// The way in which the keys of a block are visited.
struct AmxPass {
  bool slow_path = false;   // rows of V that are not finite enter the products as zeros
  float value_unit = 1.0f;  // the power of two, at most 1, by which V is multiplied

  friend bool operator==(const AmxPass&, const AmxPass&) = default;
};

// The keys that are packed in a slot.
struct PackedTile {
  std::int64_t batch;  // -1: none
  std::int64_t kv_head;
  std::int64_t first;
  std::int64_t count;
  AmxPass pass;
};

struct AmxForwardScratch {
  ForwardScratch<float> base;
  std::uint32_t* q_pairs;  // (panels, terms, padded D / 2, kAmxWidth)
  PackedTile* packed;      // (slots)
  std::uint16_t* k_tiles;  // (slots, terms, kAmxKeys / 16, padded D / 32, 16, 32)
  std::uint16_t* v_tiles;  // (slots, terms, padded Dv / 16, kAmxKeys / 32, 16, 32), transposed
  std::uint8_t* non_finite_values;  // (slots, kAmxKeys): 1 where a row of V is not finite
  std::uint32_t* probs;             // (terms, kAmxKeys / 2, kAmxWidth)
  float* scores;                    // (2, kBlockKeys, kAmxWidth)
  float* differences;               // (kBlockKeys, kAmxWidth)
  std::uint8_t* seen;               // (kAmxKeys, kAmxWidth), on the slow path
  std::int64_t slots;
  std::int64_t head_dim;   // padded
  std::int64_t value_dim;  // padded
};

// The division of the L2 between keys and queries.
struct AmxBlocking {
  std::int64_t tiles;  // packed tiles of K and V
  PanelLimits panels;  // of a block
};
// kTerms: 1 for bf16, 2 for fp16.
template <int kTerms>
AmxBlocking amx_blocking(const Problem& problem) {
  const std::int64_t head_dim = math::round_up(problem.head_dim, kTileDepth);
  const std::int64_t value_dim = math::round_up(problem.value_dim, kTileRows);
  const std::int64_t of_tile = kAmxKeys * (head_dim + value_dim) * kTerms * 2;
  const std::int64_t of_panel = kAmxWidth * (head_dim * kTerms * 2 + value_dim * 4);
  const std::int64_t tiles = math::clamp(kPackedBytes / of_tile, 1, kMostPackedTiles);
  if (problem.max_k <= tiles * kAmxKeys) return {tiles, {1, kFewAmxPanels}};
  return {1,
          {kFewestAmxPanels, math::clamp(kPanelBytes / of_panel, kFewAmxPanels, kMostAmxPanels)}};
}

template <int kTerms>
AmxForwardScratch take_amx_forward_scratch(const Problem& problem, std::int64_t panels,
                                           Arena& arena) {
  AmxForwardScratch scratch;
  scratch.head_dim = math::round_up(problem.head_dim, kTileDepth);
  scratch.value_dim = math::round_up(problem.value_dim, kTileRows);
  scratch.slots = amx_blocking<kTerms>(problem).tiles;
  scratch.base = take_row_scratch<float, kAmxWidth>(problem, panels, scratch.value_dim, arena);
  scratch.q_pairs = arena.take<std::uint32_t>(kTerms * panels * scratch.head_dim / 2 * kAmxWidth);
  scratch.packed = arena.take<PackedTile>(scratch.slots);
  scratch.k_tiles = arena.take<std::uint16_t>(scratch.slots * kTerms * kAmxKeys * scratch.head_dim);
  scratch.v_tiles =
      arena.take<std::uint16_t>(scratch.slots * kTerms * kAmxKeys * scratch.value_dim);
  scratch.non_finite_values = arena.take<std::uint8_t>(scratch.slots * kAmxKeys);
  scratch.probs = arena.take<std::uint32_t>(kTerms * kLowProbs);
  scratch.scores = arena.take<float>(2 * kBlockKeys * kAmxWidth);
  scratch.differences = arena.take<float>(kBlockKeys * kAmxWidth);
  scratch.seen = arena.take<std::uint8_t>(kAmxKeys * kAmxWidth);
  return scratch;
}

// One panel, and the part of a tile of keys that it sees, in whole blocks.
struct AmxPanelBounds {
  std::int64_t lane0;
  std::int64_t lanes;
  std::int64_t panel;
  std::int64_t slot;
  std::int64_t tile;  // first key of the tile
  std::int64_t first_block;
  std::int64_t blocks;
  std::int64_t end;  // of the keys that the panel sees in the tile
  AmxPass pass;
  bool first_visit;  // the output of the panel has no sums yet: its memory is garbage
  // The blocks in which every row sees every key, and whose products are the scores.
  std::int64_t unmasked_begin;
  std::int64_t unmasked_end;
};

TILEWISE_INLINE AmxState panel_state(std::int64_t panel, const AmxForwardScratch& scratch) {
  const ForwardScratch<float>& base = scratch.base;
  return {base.max + panel * kAmxWidth, base.sum + panel * kAmxWidth,
          base.out_panels + panel * base.out_panel};
}

TILEWISE_INLINE Anchors panel_anchors(std::int64_t panel, const AmxForwardScratch& scratch) {
  return {scratch.base.max + panel * kAmxWidth, scratch.differences};
}

// ---- one block of 32 keys: from scores to probabilities ----

TILEWISE_INLINE float* block_scores(std::int64_t number, const AmxForwardScratch& scratch) {
  return scratch.scores + number % 2 * kBlockKeys * kAmxWidth;
}
TILEWISE_INLINE std::uint32_t* block_pairs(std::int64_t number, const AmxForwardScratch& scratch) {
  return scratch.probs + number * kBlockKeys / 2 * kAmxWidth;
}
// The bounds of block `number`.
TILEWISE_INLINE TileBounds block_bounds(const AmxPanelBounds& bounds, std::int64_t number) {
  const std::int64_t key = bounds.tile + (bounds.first_block + number) * kBlockKeys;
  return {bounds.lane0, bounds.lanes, key, math::min(bounds.end - key, kBlockKeys)};
}

// Applies score modifications and the mask. Returns false if no row sees a key of the block; its
// probabilities are then 0.
template <int kTerms>
__attribute__((noinline)) inline bool apply_block_score_mod(const HeadContext& context,
                                                            const AmxPanelBounds& bounds,
                                                            std::int64_t number,
                                                            const AmxForwardScratch& scratch) {
  const TileBounds block = block_bounds(bounds, number);
  const TileClass tile_class = classify(context, Lanes::kQueries, block);
  float* const scores = block_scores(number, scratch);
  std::uint8_t* const seen = scratch.seen + (block.t0 - bounds.tile) * kAmxWidth;
  if (tile_class == TileClass::kEmpty) {
    for (int term = 0; term < kTerms; ++term) {
      __builtin_memset(block_pairs(number, scratch) + term * kLowProbs, 0,
                       kBlockKeys / 2 * kAmxWidth * 4);
    }
    if (bounds.pass.slow_path) __builtin_memset(seen, 0, kBlockKeys * kAmxWidth);
    return false;
  }
  apply_score_mod<float, Lanes::kQueries, kAmxWidth>(context, block, tile_class, scratch.base.mask,
                                                     scores, {});
  for (std::int64_t i = block.t_count * kAmxWidth; i < kBlockKeys * kAmxWidth; ++i)
    scores[i] = -math::Limits<float>::kInfinity;
  if (bounds.pass.slow_path) amx_record_seen(scores, seen);
  return true;
}

// Drops probabilities. Those that are kept get their factor at the end of the row
// (apply_dropout_scale()).
template <int kTerms>
__attribute__((noinline)) inline void drop_probs(const HeadContext& context,
                                                 const AmxPanelBounds& bounds, std::int64_t number,
                                                 const AmxForwardScratch& scratch) {
  const TileBounds block = block_bounds(bounds, number);
  std::uint32_t* const pairs = block_pairs(number, scratch);
  fill_dropout<float, Lanes::kQueries, kAmxWidth>(context, block, 1.0f, scratch.base.keep);
  for (std::int64_t t = 0; t < block.t_count; ++t) {
    const std::uint32_t other_key = t % 2 == 0 ? 0xFFFF0000u : 0x0000FFFFu;
    for (std::int64_t lane = 0; lane < block.lane_count; ++lane) {
      for (int term = 0; term < kTerms; ++term) {
        if (scratch.base.keep[t * kAmxWidth + lane] == 0)
          pairs[term * kLowProbs + t / 2 * kAmxWidth + lane] &= other_key;
      }
    }
  }
}

// Starts the slices of block `number`, whose scores are in memory.
//
// NOTE: the slices are an object of their own, whose address no out-of-line call sees, so that
// their state stays in registers between the products, which clobber memory.
template <class Slices>
TILEWISE_INLINE void begin_probs(const HeadContext& context, const AmxPanelBounds& bounds,
                                 std::int64_t number, const AmxForwardScratch& scratch,
                                 Slices& slices) {
  constexpr int kTerms = Slices::kSlices.terms;
  if (kTerms > 1 && bounds.pass.slow_path)
    recompute_non_finite_scores<Lanes::kQueries>(context, block_bounds(bounds, number),
                                                 block_scores(number, scratch));
  const bool unmasked = number >= bounds.unmasked_begin && number < bounds.unmasked_end;
  if (!unmasked && !apply_block_score_mod<kTerms>(context, bounds, number, scratch)) {
    slices.skip();
    return;
  }
  slices.begin(
      anchor_block<Slices::kSlices.exact>(slices.scale_log2(), block_scores(number, scratch),
                                          panel_anchors(bounds.panel, scratch)),
      block_pairs(number, scratch));
}

// Finishes the slices of block `number`.
//
// live: the block of the output (its first) that is in the tile registers, or nullptr
template <class Slices>
TILEWISE_INLINE void end_probs(const HeadContext& context, const AmxPanelBounds& bounds,
                               std::int64_t number, float* live, const AmxForwardScratch& scratch,
                               Slices& slices) {
  constexpr int kTerms = Slices::kSlices.terms;
  slices.drain();
  const PanelLanes overflowed = slices.overflowed();
  if (__builtin_expect(overflowed.any(), 0)) {
    if (live != nullptr) store_block(live, kAmxStride);
    const std::int64_t begun = live != nullptr ? kBlockRows : 0;
    recompute_with_new_max<kTerms, Slices::kSlices.exact>(
        slices.scale_log2(), block_scores(number, scratch), overflowed,
        panel_anchors(bounds.panel, scratch), panel_state(bounds.panel, scratch),
        {bounds.first_visit ? begun : scratch.value_dim, number * kBlockKeys / 2, scratch.probs});
    if (live != nullptr) load_block(live, kAmxStride);
  } else {
    slices.add_sums(scratch.base.sum + bounds.panel * kAmxWidth);
  }
  if (context.problem->dropout_p > 0) drop_probs<kTerms>(context, bounds, number, scratch);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AMX
