// One block of 32 keys of the forward pass in bf16 pairs: from the scores of a panel of 32 queries
// to weights; and what a worker needs for it.
#pragma once

#include "cpu/pair_odd.h"
#include "cpu/pair_softmax.h"
#include "math/integer.h"

#if TILEWISE_HAS_TILES

namespace tilewise::cpu::TILEWISE_TARGET {

// A worker keeps the tiles of K and V that it has packed, up to so much of its L2, for the next
// block of the same keys. Where these are more, it keeps one, and the L2 is for panels: a tile is
// packed once for all panels of a block (1.18 times as fast at 8192 keys as 16 panels and 1 MB).
// Packing it costs what the products of 2.4 panels cost with it (docs/matrix-unit.md): a block has
// kFewestPairPanels where that leaves enough blocks.
inline constexpr std::int64_t kPackedBytes = std::int64_t{1} << 20;
inline constexpr std::int64_t kMostPackedTiles = 8;
inline constexpr std::int64_t kPanelBytes = std::int64_t{5} << 18;
inline constexpr std::int64_t kFewPairPanels = 16;
inline constexpr std::int64_t kMostPairPanels = 48;
inline constexpr std::int64_t kFewestPairPanels = 4;

// Which keys a slot holds, packed.
struct PackedTile {
  std::int64_t batch;  // -1: nothing
  std::int64_t kv_head;
  std::int64_t first;
  std::int64_t count;
  bool careful;
};

struct PairScratch {
  ForwardScratch<float> plain;
  std::uint32_t* q_pairs;    // (panels, terms, padded D / 2, kPairWidth)
  PackedTile* packed;        // (slots)
  std::uint16_t* k_tiles;    // (slots, terms, kPairKeys / 16, padded D / 32, 16, 32)
  std::uint16_t* v_tiles;    // (slots, terms, padded Dv / 16, kPairKeys / 32, 16, 32), transposed
  std::uint8_t* odd_values;  // (slots, kPairKeys): 1 where a row of V is not finite
  std::uint32_t* weights;    // (terms, kPairKeys / 2, kPairWidth)
  float* scores;             // (2, kBlockKeys, kPairWidth)
  float* differences;        // (kBlockKeys, kPairWidth)
  std::uint8_t* seen;        // (kPairKeys, kPairWidth), in a careful pass
  std::int64_t slots;
  std::int64_t head_dim;   // padded
  std::int64_t value_dim;  // padded
};

// What of the L2 goes to keys, and what to queries.
struct PairBlocking {
  std::int64_t tiles;  // packed, of K and V
  PanelLimits panels;  // of a block
};
// kTerms: 1 for bf16, 2 for fp16
template <int kTerms>
PairBlocking pair_blocking(const Problem& problem) {
  const std::int64_t head_dim = math::round_up(problem.head_dim, kTileDepth);
  const std::int64_t value_dim = math::round_up(problem.value_dim, kTileRows);
  const std::int64_t of_tile = kPairKeys * (head_dim + value_dim) * kTerms * 2;
  const std::int64_t of_panel = kPairWidth * (head_dim * kTerms * 2 + value_dim * 4);
  const std::int64_t tiles = math::clamp(kPackedBytes / of_tile, 1, kMostPackedTiles);
  if (problem.max_k <= tiles * kPairKeys) return {tiles, {1, kFewPairPanels}};
  return {
      1, {kFewestPairPanels, math::clamp(kPanelBytes / of_panel, kFewPairPanels, kMostPairPanels)}};
}

template <int kTerms>
PairScratch take_pair_scratch(const Problem& problem, std::int64_t panels, Arena& arena) {
  PairScratch scratch;
  scratch.head_dim = math::round_up(problem.head_dim, kTileDepth);
  scratch.value_dim = math::round_up(problem.value_dim, kTileRows);
  scratch.slots = pair_blocking<kTerms>(problem).tiles;
  scratch.plain = take_row_scratch<float, kPairWidth>(problem, panels, scratch.value_dim, arena);
  scratch.q_pairs = arena.take<std::uint32_t>(kTerms * panels * scratch.head_dim / 2 * kPairWidth);
  scratch.packed = arena.take<PackedTile>(scratch.slots);
  scratch.k_tiles =
      arena.take<std::uint16_t>(scratch.slots * kTerms * kPairKeys * scratch.head_dim);
  scratch.v_tiles =
      arena.take<std::uint16_t>(scratch.slots * kTerms * kPairKeys * scratch.value_dim);
  scratch.odd_values = arena.take<std::uint8_t>(scratch.slots * kPairKeys);
  scratch.weights = arena.take<std::uint32_t>(kTerms * kLowWeights);
  scratch.scores = arena.take<float>(2 * kBlockKeys * kPairWidth);
  scratch.differences = arena.take<float>(kBlockKeys * kPairWidth);
  scratch.seen = arena.take<std::uint8_t>(kPairKeys * kPairWidth);
  return scratch;
}

// One panel and the part of a tile that it sees: whole blocks of keys.
struct PairFrame {
  std::int64_t lane0;
  std::int64_t lanes;
  std::int64_t panel;
  std::int64_t slot;
  std::int64_t tile;  // first key of the tile
  std::int64_t first_block;
  std::int64_t blocks;
  std::int64_t end;  // of the keys that the panel sees in the tile
  bool careful;
  bool fresh;  // the panel has no sums of its output yet: what lies there is garbage
  // Blocks whose every key every row sees, and whose products are the scores.
  std::int64_t plain_begin;
  std::int64_t plain_end;
};

TILEWISE_INLINE PairState panel_state(std::int64_t panel, const PairScratch& scratch) {
  const ForwardScratch<float>& plain = scratch.plain;
  return {plain.max + panel * kPairWidth, plain.sum + panel * kPairWidth,
          plain.out_panels + panel * plain.out_panel};
}

TILEWISE_INLINE References panel_references(std::int64_t panel, const PairScratch& scratch) {
  return {scratch.plain.max + panel * kPairWidth, scratch.differences};
}

// ---- one block of 32 keys: from scores to weights ----

TILEWISE_INLINE float* block_scores(std::int64_t number, const PairScratch& scratch) {
  return scratch.scores + number % 2 * kBlockKeys * kPairWidth;
}
TILEWISE_INLINE std::uint32_t* block_pairs(std::int64_t number, const PairScratch& scratch) {
  return scratch.weights + number * kBlockKeys / 2 * kPairWidth;
}
// Block `number` of the frame.
TILEWISE_INLINE Frame block_frame(const PairFrame& frame, std::int64_t number) {
  const std::int64_t key = frame.tile + (frame.first_block + number) * kBlockKeys;
  return {frame.lane0, frame.lanes, key, math::min(frame.end - key, kBlockKeys)};
}

// The score rule and the mask. False if no row sees a key of the block: its weights are 0.
template <int kTerms>
__attribute__((noinline)) inline bool finish_block_scores(const HeadContext& context,
                                                          const PairFrame& frame,
                                                          std::int64_t number,
                                                          const PairScratch& scratch) {
  const Frame block = block_frame(frame, number);
  const TileClass tile_class = classify(context, Lanes::kQueries, block);
  float* const scores = block_scores(number, scratch);
  std::uint8_t* const seen = scratch.seen + (block.t0 - frame.tile) * kPairWidth;
  if (tile_class == TileClass::kEmpty) {
    for (int term = 0; term < kTerms; ++term) {
      __builtin_memset(block_pairs(number, scratch) + term * kLowWeights, 0,
                       kBlockKeys / 2 * kPairWidth * 4);
    }
    if (frame.careful) __builtin_memset(seen, 0, kBlockKeys * kPairWidth);
    return false;
  }
  finish_scores<float, Lanes::kQueries, kPairWidth>(context, block, tile_class, scratch.plain.mask,
                                                    scores, nullptr);
  for (std::int64_t i = block.t_count * kPairWidth; i < kBlockKeys * kPairWidth; ++i)
    scores[i] = -math::Limits<float>::kInfinity;
  if (frame.careful) record_seen<float, kPairWidth>(kBlockKeys, scores, seen);
  return true;
}

// Drops weights; those that stay get their factor at the end of the row (scale_kept()).
template <int kTerms>
__attribute__((noinline)) inline void drop_weights(const HeadContext& context,
                                                   const PairFrame& frame, std::int64_t number,
                                                   const PairScratch& scratch) {
  const Frame block = block_frame(frame, number);
  std::uint32_t* const pairs = block_pairs(number, scratch);
  fill_dropout<float, Lanes::kQueries, kPairWidth>(context, block, 1.0f, scratch.plain.keep);
  for (std::int64_t t = 0; t < block.t_count; ++t) {
    const std::uint32_t other_key = t % 2 == 0 ? 0xFFFF0000u : 0x0000FFFFu;
    for (std::int64_t lane = 0; lane < block.lane_count; ++lane) {
      for (int term = 0; term < kTerms; ++term) {
        if (scratch.plain.keep[t * kPairWidth + lane] == 0)
          pairs[term * kLowWeights + t / 2 * kPairWidth + lane] &= other_key;
      }
    }
  }
}

// Block `number` goes into slices: its scores are in memory.
// NOTE: the slices are an object of their own, whose address no call out of line sees: their state
// stays in registers between the products, which clobber memory.
template <class Slices>
TILEWISE_INLINE void begin_weights(const HeadContext& context, const PairFrame& frame,
                                   std::int64_t number, const PairScratch& scratch,
                                   Slices& slices) {
  constexpr int kTerms = Slices::kSlices.terms;
  if (kTerms > 1 && frame.careful)
    repeat_odd_scores<Lanes::kQueries>(context, block_frame(frame, number),
                                       block_scores(number, scratch));
  const bool plain = number >= frame.plain_begin && number < frame.plain_end;
  if (!plain && !finish_block_scores<kTerms>(context, frame, number, scratch)) {
    slices.skip();
    return;
  }
  slices.begin(anchor_block<Slices::kSlices.exact>(slices.unit(), block_scores(number, scratch),
                                                   panel_references(frame.panel, scratch)),
               block_pairs(number, scratch));
}

// What is left of block `number`.  live: the block of the output, its first, that is in the tile
// registers, if any
template <class Slices>
TILEWISE_INLINE void end_weights(const HeadContext& context, const PairFrame& frame,
                                 std::int64_t number, float* live, const PairScratch& scratch,
                                 Slices& slices) {
  constexpr int kTerms = Slices::kSlices.terms;
  slices.rest();
  const LanesOfPanel too_large = slices.too_large();
  if (__builtin_expect(too_large.any(), 0)) {
    if (live != nullptr) store_block(live, kPairStride);
    const std::int64_t begun = live != nullptr ? kBlockRows : 0;
    weigh_again<kTerms, Slices::kSlices.exact>(
        slices.unit(), block_scores(number, scratch), too_large,
        panel_references(frame.panel, scratch), panel_state(frame.panel, scratch),
        {frame.fresh ? begun : scratch.value_dim, number * kBlockKeys / 2, scratch.weights});
    if (live != nullptr) load_block(live, kPairStride);
  } else {
    slices.add_sums(scratch.plain.sum + frame.panel * kPairWidth);
  }
  if (context.problem->dropout_p > 0) drop_weights<kTerms>(context, frame, number, scratch);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_TILES
