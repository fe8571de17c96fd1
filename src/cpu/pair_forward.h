// The forward pass for bf16 on the matrix unit: forward.h's blocks and panels, with both products
// in bf16 pairs and fp32 sums. A panel of 32 queries meets a tile of keys in two steps: block by
// block of 32 keys, scores and their softmax, which leaves weights in bf16; then one product of all
// these weights with V. The softmax of a block runs in slices under the products of the next one:
// the unit works while the vector ports do.
#pragma once

#include "cpu/pair_block.h"

#if TILEWISE_HAS_TILES

namespace tilewise::cpu::TILEWISE_TARGET {

// The rows of V that are not finite took part as zeros: each is added to the lanes that see it, and
// to no others.
TILEWISE_INLINE void add_odd_values(const HeadContext& context, const PairFrame& frame, float* out,
                                    const PairScratch& scratch) {
  const Problem& problem = *context.problem;
  const std::int64_t first = frame.first_block * kBlockKeys;
  for (std::int64_t t = first; t < frame.end - frame.tile; ++t) {
    if (scratch.odd_values[frame.slot * kPairKeys + t] == 0) continue;
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

// ---- a panel and its part of a tile ----

// Scores of all blocks, and the weights of all but the last. Returns where the last one's scores,
// still in the tile registers, belong.
template <int kSteps, int kKeyPairs>
TILEWISE_INLINE float* score_blocks(const HeadContext& context, const PairFrame& frame,
                                    const PairScratch& scratch, WeightSlices<kKeyPairs>& slices) {
  const std::int64_t across = kSteps > 0 ? kSteps : scratch.head_dim / kTileDepth;
  const std::uint16_t* k = scratch.k_tiles + frame.slot * kPairKeys * scratch.head_dim +
                           frame.first_block * 2 * across * kTileElements;
  const std::uint32_t* const q = scratch.q_pairs + frame.panel * scratch.head_dim / 2 * kPairWidth;
  float* pending = nullptr;
  for (std::int64_t b = 0; b < frame.blocks; ++b, k += 2 * across * kTileElements) {
    const std::uint16_t* const bottom = k + across * kTileElements;
    begin_block({k, bottom, q, kPairStride}, nullptr, pending, kPairStride, slices);
    if (b > 1) end_weights(context, frame, b - 2, nullptr, scratch, slices);
    if (b > 0) begin_weights(context, frame, b - 1, scratch, slices);
#pragma GCC unroll 3
    for (std::int64_t t = 1; t < across; ++t) {
      add_step({k + t * kTileElements, bottom + t * kTileElements, q + t * kTileRows * kPairWidth,
                kPairStride},
               slices);
    }
    pending = block_scores(b, scratch);
  }
  return pending;
}

// out += V^T P^T, over all keys of the frame, 32 rows at a time. The last block's weights are made
// under the first rows, if `pending` says where its scores belong.
template <int kKeyPairs>
TILEWISE_INLINE void output_blocks(const HeadContext& context, const PairFrame& frame,
                                   float* pending, const PairScratch& scratch,
                                   WeightSlices<kKeyPairs>& slices) {
  constexpr std::int64_t kAcross = kPairKeys / kTileDepth;
  const std::uint16_t* v = scratch.v_tiles + frame.slot * kPairKeys * scratch.value_dim +
                           frame.first_block * kTileElements;
  float* out = panel_state(frame.panel, scratch).out;
  const std::int64_t last = frame.blocks - 1;
  const auto operands = [&](std::int64_t b) {
    const std::uint16_t* const top = v + b * kTileElements;
    return TileOperands{top, top + kAcross * kTileElements, block_pairs(b, scratch), kPairStride};
  };
  std::int64_t row = 0;
  if (pending != nullptr) {
    begin_block(operands(0), out, pending, kPairStride, slices);
    end_weights(context, frame, last - 1, out, scratch, slices);
    begin_weights(context, frame, last, scratch, slices);
    for (std::int64_t b = 1; b < last; ++b) add_step(operands(b), slices);
    end_weights(context, frame, last, out, scratch, slices);
    add_step(operands(last), slices);
    pending = out;
    row += 32;
    v += 2 * kAcross * kTileElements;
    out += std::int64_t{32} * kPairWidth;
  }
  NoSlices none;
  for (; row + 32 <= scratch.value_dim; row += 32) {
    begin_block(operands(0), out, pending, kPairStride, none);
#pragma GCC unroll 4
    for (std::int64_t b = 1; b <= last; ++b) add_step(operands(b), none);
    pending = out;
    v += 2 * kAcross * kTileElements;
    out += std::int64_t{32} * kPairWidth;
  }
  if (pending != nullptr) store_block(pending, kPairStride);
  if (row == scratch.value_dim) return;
  load_flat_block(out, kPairStride);
  for (std::int64_t b = 0; b <= last; ++b) add_flat_step(operands(b));
  store_flat_block(out, kPairStride);
}

// kSteps: of a block of scores, 32 columns each; 0: any number. A block has four products a step,
// and in them its 16 pairs of keys.
template <int kSteps>
__attribute__((noinline)) void pair_tile(const HeadContext& context, const PairFrame& frame,
                                         const PairScratch& scratch) {
  constexpr int kKeyPairs = kSteps == 0 ? 2 : 4 / kSteps;
  WeightSlices<kKeyPairs> slices(ScoreUnits<float>(*context.problem).exponent().factor);
  float* pending = score_blocks<kSteps>(context, frame, scratch, slices);
  const std::int64_t last = frame.blocks - 1;
  // With few blocks, there are not enough products in 32 rows of the output.
  constexpr std::int64_t kFew = 16 / (4 * kKeyPairs) + 2;
  if (frame.blocks < kFew || scratch.value_dim < 32) {
    store_block(pending, kPairStride);
    pending = nullptr;
    if (last > 0) end_weights(context, frame, last - 1, nullptr, scratch, slices);
    begin_weights(context, frame, last, scratch, slices);
    end_weights(context, frame, last, nullptr, scratch, slices);
  }
  output_blocks(context, frame, pending, scratch, slices);
  if (frame.careful) add_odd_values(context, frame, panel_state(frame.panel, scratch).out, scratch);
}

// ---- all panels of a block of queries ----

// Packs keys [first, first + count) of K and V, unless they are. Returns their slot.
TILEWISE_INLINE std::int64_t pack_tile(const HeadContext& context, std::int64_t first,
                                       std::int64_t count, bool careful,
                                       const PairScratch& scratch) {
  const Problem& problem = *context.problem;
  const std::int64_t slot = first / kPairKeys % scratch.slots;
  PackedTile& held = scratch.packed[slot];
  const PackedTile wanted = {context.sequence.batch, context.kv_head(), first, count, careful};
  if (held.batch == wanted.batch && held.kv_head == wanted.kv_head && held.first == first &&
      held.count >= count && held.careful == careful)
    return slot;
  held = wanted;
  const std::int64_t row = context.sequence.k_start + first;
  const RowBlock k = {&problem.k, wanted.batch, wanted.kv_head, row, count, problem.head_dim};
  const RowBlock v = {&problem.v, wanted.batch, wanted.kv_head, row, count, problem.value_dim};
  std::uint8_t* const odd_values = scratch.odd_values + slot * kPairKeys;
  pack_row_tiles(k, scratch.k_tiles + slot * kPairKeys * scratch.head_dim);
  if (careful) mark_odd_rows(v, odd_values);
  pack_column_tiles(v, kPairKeys / kTileDepth, careful ? odd_values : nullptr,
                    scratch.v_tiles + slot * kPairKeys * scratch.value_dim);
  return slot;
}

TILEWISE_INLINE PairFrame panel_frame(const QueryBlock& block, std::int64_t panel,
                                      std::int64_t tile, std::int64_t count) {
  const HeadContext& context = block.context;
  PairFrame frame = {};
  frame.lane0 = block.first + panel * kPairWidth;
  frame.lanes = math::lesser(kPairWidth, block.rows - panel * kPairWidth);
  frame.panel = panel;
  frame.tile = tile;
  const math::KeyRange own = keys_of_rows(context, frame.lane0, frame.lanes);
  frame.end = math::lesser(own.end, tile + count);
  frame.first_block = math::greater(own.begin - tile, 0) / kBlockKeys;
  frame.blocks = divide_up(frame.end - tile, kBlockKeys) - frame.first_block;
  const std::int64_t first = tile + frame.first_block * kBlockKeys;
  frame.products_do =
      ScoreUnits<float>(*context.problem).plain && (frame.end - first) % kBlockKeys == 0 &&
      classify(context, Lanes::kQueries, {frame.lane0, frame.lanes, first, frame.end - first}) ==
          TileClass::kFull;
  return frame;
}

TILEWISE_INLINE void visit_keys_in_pairs(const RunContext& run, const QueryBlock& block,
                                         bool careful, const PairScratch& scratch) {
  const math::KeyRange keys = keys_of_block(block);
  const Problem& problem = *block.context.problem;
  const std::int64_t row_bytes = (problem.head_dim + problem.value_dim) * 2;
  const std::int64_t steps = scratch.head_dim / kTileDepth;
  const auto visit = steps == 4   ? pair_tile<4>
                     : steps == 2 ? pair_tile<2>
                     : steps == 1 ? pair_tile<1>
                                  : pair_tile<0>;
  for (std::int64_t tile = keys.begin / kPairKeys * kPairKeys; tile < keys.end; tile += kPairKeys) {
    const std::int64_t count = math::lesser(tile + kPairKeys, keys.end) - tile;
    const std::int64_t slot = pack_tile(block.context, tile, count, careful, scratch);
    count_traffic(run, count * row_bytes, 0);  // from the packed copy, if there is one
    for (std::int64_t panel = 0; panel * kPairWidth < block.rows; ++panel) {
      PairFrame frame = panel_frame(block, panel, tile, count);
      if (frame.end <= tile || frame.blocks <= 0) continue;
      frame.slot = slot;
      frame.careful = careful;
      frame.products_do = frame.products_do && !careful;
      visit(block.context, frame, scratch);
    }
  }
}

TILEWISE_INLINE void load_query_pairs(const QueryBlock& block, const PairScratch& scratch) {
  const Problem& problem = *block.context.problem;
  for (std::int64_t panel = 0; panel * kPairWidth < block.rows; ++panel) {
    pack_pairs<kPairWidth>(panel_rows(problem.q, block, panel, kPairWidth, problem.head_dim),
                           ScoreUnits<float>(problem).packed < 0, nullptr,
                           scratch.q_pairs + panel * scratch.head_dim / 2 * kPairWidth);
    start_panel<float, kPairWidth>(panel, scratch.plain);
  }
}

// Weights carry a factor that store_outputs() does not know, sums and outputs alike: it goes into
// the maximum. What dropout left gets its factor.
TILEWISE_INLINE void settle_rows(const QueryBlock& block, const PairScratch& scratch) {
  const Problem& problem = *block.context.problem;
  const float shift =
      static_cast<float>(math::kLn2) * math::log2(kUnitWeight) / ScoreUnits<float>(problem).natural;
  for (std::int64_t i = 0; i < block.rows; ++i) scratch.plain.max[i] -= shift;
  if (problem.dropout_p == 0) return;
  const Vec<float> factor(static_cast<float>(1 / (1 - problem.dropout_p)));
  const std::int64_t count = divide_up(block.rows, kPairWidth) * scratch.plain.out_panel;
  for (std::int64_t i = 0; i < count; i += Vec<float>::kLanes) {
    float* const at = scratch.plain.out_panels + i;
    (Vec<float>::load(at) * factor).store(at);
  }
}

// The states of a block's rows, left in the scratch.
TILEWISE_INLINE void forward_block_in_pairs(const RunContext& run, const QueryBlock& block,
                                            const PairScratch& scratch) {
  // The unit flushes denormals. Weights that are some would take the exponential's instruction ten
  // times as long; the thread's mode comes back before the outputs are stored.
  const unsigned mode = _mm_getcsr();
  for (bool careful = false;; careful = true) {
    load_query_pairs(block, scratch);
    _mm_setcsr(mode | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
    configure_tiles();
    visit_keys_in_pairs(run, block, careful, scratch);
    release_tiles();
    _mm_setcsr(mode);
    if (careful || block_is_finite<float, kPairWidth>(block, scratch.plain)) break;
  }
  count_query_traffic(run, block);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_TILES
