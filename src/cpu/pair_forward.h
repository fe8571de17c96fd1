// The forward pass for bf16 on the matrix unit: forward.h's blocks and panels, with both products
// in bf16 pairs and fp32 sums. A panel of 32 queries meets a tile of keys in two steps: block by
// block of 32 keys, scores and their softmax, which leaves weights in bf16; then one product of all
// these weights with V. The scores of a block are asked for before the softmax of the block before
// it, so that the unit works while the vector ports do.
#pragma once

#include "cpu/pair_softmax.h"

#if TILEWISE_HAS_TILES

namespace tilewise::cpu::TILEWISE_TARGET {

// Keys of a tile: the sums of the output are loaded and stored once for so many; the weights are 32
// KB.
inline constexpr std::int64_t kPairKeys = 512;
// Panels of a block: K and V are packed once for all of them.
inline constexpr std::int64_t kMostPairPanels = 32;

TILEWISE_INLINE bool uses_pairs(const Problem& problem) {
  return problem.q.dtype == TILEWISE_BF16 && problem.k.dtype == TILEWISE_BF16 &&
         problem.v.dtype == TILEWISE_BF16;
}

struct PairScratch {
  ForwardScratch<float> plain;  // its `max` is the reference in units of log 2, then the maximum
  std::uint32_t* q_pairs;       // (panels, padded D / 2, kPairWidth)
  std::uint16_t* k_tiles;       // (kPairKeys / 16, padded D / 32, 16, 32)
  std::uint16_t* v_tiles;       // (padded Dv / 16, kPairKeys / 32, 16, 32), transposed
  std::uint32_t* weights;       // (kPairKeys / 2, kPairWidth)
  float* scores;                // (2, kBlockKeys, kPairWidth)
  std::uint8_t* odd_values;     // (kPairKeys): 1 where a row of V is not finite
  std::uint8_t* seen;           // (kPairKeys, kPairWidth), in a careful pass
  std::int64_t head_dim;        // padded
  std::int64_t value_dim;       // padded
};

TILEWISE_INLINE PairScratch take_pair_scratch(const Problem& problem, std::int64_t panels,
                                              Arena& arena) {
  PairScratch scratch;
  scratch.head_dim = round_up(problem.head_dim, kTileDepth);
  scratch.value_dim = round_up(problem.value_dim, kTileRows);
  scratch.plain = take_row_scratch<float, kPairWidth>(problem, panels, scratch.value_dim, arena);
  scratch.q_pairs = arena.take<std::uint32_t>(panels * scratch.head_dim / 2 * kPairWidth);
  scratch.k_tiles = arena.take<std::uint16_t>(kPairKeys * scratch.head_dim);
  scratch.v_tiles = arena.take<std::uint16_t>(kPairKeys * scratch.value_dim);
  scratch.weights = arena.take<std::uint32_t>(kPairKeys / 2 * kPairWidth);
  scratch.scores = arena.take<float>(2 * kBlockKeys * kPairWidth);
  scratch.odd_values = arena.take<std::uint8_t>(kPairKeys);
  scratch.seen = arena.take<std::uint8_t>(kPairKeys * kPairWidth);
  return scratch;
}

// One panel and the part of a tile that it sees: whole blocks of keys.
struct PairFrame {
  std::int64_t lane0;
  std::int64_t lanes;
  std::int64_t panel;
  std::int64_t tile;  // first key of the tile
  std::int64_t first_block;
  std::int64_t blocks;
  std::int64_t end;  // of the keys that the panel sees in the tile
  bool careful;
};

TILEWISE_INLINE PairState panel_state(std::int64_t panel, const PairScratch& scratch) {
  const ForwardScratch<float>& plain = scratch.plain;
  return {plain.max + panel * kPairWidth, plain.sum + panel * kPairWidth,
          plain.out_panels + panel * plain.out_panel};
}

// Scores of block `number` of the frame, from the tile registers to memory with the block after it.
TILEWISE_INLINE void ask_for_scores(const PairFrame& frame, std::int64_t number, float* pending,
                                    const PairScratch& scratch) {
  const std::int64_t across = scratch.head_dim / kTileDepth;
  const std::uint16_t* const top =
      scratch.k_tiles + (frame.first_block + number) * 2 * across * kTileElements;
  const std::uint32_t* const q = scratch.q_pairs + frame.panel * scratch.head_dim / 2 * kPairWidth;
  constexpr std::int64_t kStride = std::int64_t{kPairWidth} * 4;
  for (std::int64_t t = 0; t < across; ++t) {
    const TileOperands operands = {top + t * kTileElements, top + (across + t) * kTileElements,
                                   q + t * kTileRows * kPairWidth, kStride};
    if (t == 0) {
      begin_block<false>(operands, nullptr, pending, kStride);
    } else {
      add_step(operands);
    }
  }
  tile_fence();
}

// Drops weights, and packs them again. The factor 1 / (1 - p) of those that stay comes at the end
// of the row: on every weight, it would be rounded the same way.
TILEWISE_INLINE void drop_weights(const HeadContext& context, const Frame& block, float* weights,
                                  std::uint32_t* pairs, const PairScratch& scratch) {
  fill_dropout<float, Lanes::kQueries, kPairWidth>(context, block, scratch.plain.keep);
  for (std::int64_t t = 0; t < block.t_count; ++t) {
    for (std::int64_t lane = 0; lane < block.lane_count; ++lane) {
      const std::int64_t at = t * kPairWidth + lane;
      if (scratch.plain.keep[at] == 0) weights[at] = 0;
    }
  }
  const PairRounder rounder;
  for (std::int64_t at = 0; at < kBlockKeys / 2 * kPairWidth; at += Vec<float>::kLanes) {
    const std::int64_t row = at / kPairWidth * 2 * kPairWidth + at % kPairWidth;
    rounder.store(Vec<float>::load(weights + row), Vec<float>::load(weights + row + kPairWidth),
                  pairs + at);
  }
}

// From scores of a block to its weights.
TILEWISE_INLINE void finish_block(const HeadContext& context, const PairFrame& frame,
                                  std::int64_t number, float* scores, const PairScratch& scratch) {
  const Problem& problem = *context.problem;
  const std::int64_t key = (frame.first_block + number) * kBlockKeys;  // in the tile
  const Frame block = {frame.lane0, frame.lanes, frame.tile + key,
                       math::lesser(frame.end - frame.tile - key, kBlockKeys)};
  std::uint32_t* const pairs = scratch.weights + number * kBlockKeys / 2 * kPairWidth;
  const TileClass tile_class = classify(context, Lanes::kQueries, block);
  if (tile_class == TileClass::kEmpty) {
    for (std::int64_t i = 0; i < kBlockKeys / 2 * kPairWidth; ++i) pairs[i] = 0;
    if (frame.careful)
      __builtin_memset(scratch.seen + key * kPairWidth, 0, kBlockKeys * kPairWidth);
    return;
  }
  finish_scores<float, Lanes::kQueries, kPairWidth>(context, block, tile_class, scratch.plain.mask,
                                                    scores, nullptr);
  for (std::int64_t i = block.t_count * kPairWidth; i < kBlockKeys * kPairWidth; ++i)
    scores[i] = -math::Limits<float>::kInfinity;
  if (frame.careful)
    record_seen<float, kPairWidth>(kBlockKeys, scores, scratch.seen + key * kPairWidth);
  const Move move = {scratch.value_dim, number * kBlockKeys / 2, scratch.weights};
  const bool drops = problem.dropout_p > 0;
  pair_softmax(ScoreUnits<float>(problem).exponent().factor, scores, pairs,
               panel_state(frame.panel, scratch), move, drops);
  if (drops) drop_weights(context, block, scores, pairs, scratch);
}

// The rows of V that are not finite took part as zeros: each is added to the lanes that see it, and
// to no others.
TILEWISE_INLINE void add_odd_values(const HeadContext& context, const PairFrame& frame, float* out,
                                    const PairScratch& scratch) {
  const Problem& problem = *context.problem;
  const std::int64_t first = frame.first_block * kBlockKeys;
  for (std::int64_t t = first; t < frame.end - frame.tile; ++t) {
    if (scratch.odd_values[t] == 0) continue;
    const math::BFloat16* const value = static_cast<const math::BFloat16*>(problem.v.data) +
                                        problem.v.offset(context.sequence.batch, context.kv_head(),
                                                         context.sequence.k_start + frame.tile + t);
    for (int lane = 0; lane < kPairWidth; ++lane) {
      if (scratch.seen[t * kPairWidth + lane] == 0) continue;
      const std::uint32_t word = scratch.weights[(t - first) / 2 * kPairWidth + lane];
      const math::BFloat16 half = {
          static_cast<std::uint16_t>((t - first) % 2 == 0 ? word : word >> 16)};
      const float weight = math::to_float(half);
      for (std::int64_t c = 0; c < problem.value_dim; ++c)
        out[c * kPairWidth + lane] += math::to_float(value[c]) * weight;
    }
  }
}

TILEWISE_INLINE void pair_tile(const HeadContext& context, const PairFrame& frame,
                               const PairScratch& scratch) {
  tile_fence();
  for (std::int64_t b = 0; b <= frame.blocks; ++b) {
    float* const before = scratch.scores + (b + 1) % 2 * kBlockKeys * kPairWidth;
    if (b < frame.blocks) {
      ask_for_scores(frame, b, b > 0 ? before : nullptr, scratch);
    } else {
      store_block(before, std::int64_t{kPairWidth} * 4);
      tile_fence();
    }
    if (b > 0) finish_block(context, frame, b - 1, before, scratch);
  }
  float* const out = panel_state(frame.panel, scratch).out;
  pair_product<kPairWidth, true>(
      {scratch.v_tiles + frame.first_block * kTileElements, kPairKeys / kTileDepth},
      scratch.value_dim, scratch.weights, frame.blocks * kBlockKeys, out);
  if (frame.careful) add_odd_values(context, frame, out, scratch);
}

// Packs keys [first, first + count) of K and V.
TILEWISE_INLINE void pack_tile(const HeadContext& context, std::int64_t first, std::int64_t count,
                               bool careful, const PairScratch& scratch) {
  const Problem& problem = *context.problem;
  const std::int64_t row = context.sequence.k_start + first;
  const RowBlock k = {&problem.k, context.sequence.batch, context.kv_head(), row,
                      count,      problem.head_dim};
  const RowBlock v = {&problem.v, context.sequence.batch, context.kv_head(), row,
                      count,      problem.value_dim};
  pack_row_tiles(k, scratch.k_tiles);
  for (std::int64_t r = 0; careful && r < count; ++r) {
    bool finite = true;
    for (std::int64_t c = 0; c < v.width; ++c)
      finite = finite && (bfloat_rows(v)[r * problem.v.row + c] & 0x7F80) != 0x7F80;
    scratch.odd_values[r] = finite ? 0 : 1;
  }
  pack_column_tiles(v, kPairKeys / kTileDepth, careful ? scratch.odd_values : nullptr,
                    scratch.v_tiles);
}

TILEWISE_INLINE void visit_keys_in_pairs(const RunContext& run, const QueryBlock& block,
                                         bool careful, const PairScratch& scratch) {
  const HeadContext& context = block.context;
  const Problem& problem = *context.problem;
  const math::KeyRange keys = keys_of_rows(context, block.first, block.rows);
  for (std::int64_t tile = keys.begin / kPairKeys * kPairKeys; tile < keys.end; tile += kPairKeys) {
    const std::int64_t count = math::lesser(tile + kPairKeys, keys.end) - tile;
    pack_tile(context, tile, count, careful, scratch);
    count_traffic(run, count * (problem.head_dim + problem.value_dim) * 2, 0);
    for (std::int64_t panel = 0; panel * kPairWidth < block.rows; ++panel) {
      PairFrame frame;
      frame.lane0 = block.first + panel * kPairWidth;
      frame.lanes = math::lesser(kPairWidth, block.rows - panel * kPairWidth);
      frame.panel = panel;
      frame.tile = tile;
      frame.careful = careful;
      const math::KeyRange own = keys_of_rows(context, frame.lane0, frame.lanes);
      frame.end = math::lesser(own.end, tile + count);
      frame.first_block = math::greater(own.begin - tile, 0) / kBlockKeys;
      frame.blocks = divide_up(frame.end - tile, kBlockKeys) - frame.first_block;
      if (frame.end > tile && frame.blocks > 0) pair_tile(context, frame, scratch);
    }
  }
}

TILEWISE_INLINE void load_query_pairs(const QueryBlock& block, const PairScratch& scratch) {
  const Problem& problem = *block.context.problem;
  for (std::int64_t panel = 0; panel * kPairWidth < block.rows; ++panel) {
    pack_pairs<kPairWidth>(panel_rows(problem.q, block, panel, kPairWidth, problem.head_dim),
                           ScoreUnits<float>(problem).packed < 0,
                           scratch.q_pairs + panel * scratch.head_dim / 2 * kPairWidth);
    start_panel<float, kPairWidth>(panel, scratch.plain);
  }
}

// References are in units of log 2; store_outputs() takes maxima in the units of the scores. What
// dropout left gets its factor.
TILEWISE_INLINE void settle_rows(const QueryBlock& block, const PairScratch& scratch) {
  const Problem& problem = *block.context.problem;
  const float per_unit = static_cast<float>(math::kLn2) / ScoreUnits<float>(problem).natural;
  for (std::int64_t i = 0; i < block.rows; ++i) scratch.plain.max[i] *= per_unit;
  if (problem.dropout_p == 0) return;
  const Vec<float> factor(static_cast<float>(1 / (1 - problem.dropout_p)));
  const std::int64_t count = divide_up(block.rows, kPairWidth) * scratch.plain.out_panel;
  for (std::int64_t i = 0; i < count; i += Vec<float>::kLanes) {
    float* const at = scratch.plain.out_panels + i;
    (Vec<float>::load(at) * factor).store(at);
  }
}

TILEWISE_INLINE void forward_block_in_pairs(const RunContext& run, const QueryBlock& block,
                                            const PairScratch& scratch) {
  for (bool careful = false;; careful = true) {
    load_query_pairs(block, scratch);
    configure_tiles();
    visit_keys_in_pairs(run, block, careful, scratch);
    release_tiles();
    if (careful || block_is_finite<float, kPairWidth>(block, scratch.plain)) break;
  }
  settle_rows(block, scratch);
  store_outputs<float, kPairWidth>(block, scratch.plain);
  count_query_traffic(run, block);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_TILES
