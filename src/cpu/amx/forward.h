// The forward pass of bf16 and fp16 on AMX: the blocks and panels of forward/main_loop.h, with both
// products as tile products of bf16 and fp32 sums. A panel of 32 queries visits a tile of 512 keys
// in two steps. First come scores and softmax, block by block of 32 keys, which leave probabilities
// in bf16; then one product of all these probabilities with V. The softmax of a block is cut in
// slices that overlap with the products of the next block, so that the tile unit and the vector
// ports work at the same time.
#pragma once

#include "cpu/amx/forward_pass.h"
#include "cpu/amx/fp16_terms.h"
#include "cpu/forward/run.h"
#include "math/integer.h"

#if TILEWISE_HAS_AMX

namespace tilewise::cpu::TILEWISE_TARGET {

// The rows of V that are not finite entered the product as zeros; each is now added to the lanes
// that see it, and to no others.
template <int kTerms>
TILEWISE_INLINE void add_non_finite_values(const HeadContext& context, const AmxPanelBounds& bounds,
                                           float* out, const AmxForwardScratch& scratch) {
  using S = AmxNumber<kTerms>;
  const Problem& problem = *context.problem;
  const std::int64_t first = bounds.first_block * kBlockKeys;
  for (std::int64_t t = first; t < bounds.end - bounds.tile; ++t) {
    if (scratch.non_finite_values[bounds.slot * kAmxKeys + t] == 0) continue;
    const S* const value = static_cast<const S*>(problem.v.data) +
                           problem.key_offset(problem.v, context.sequence.batch, context.kv_head(),
                                              context.sequence.k_start + bounds.tile + t);
    for (int lane = 0; lane < kAmxWidth; ++lane) {
      if (scratch.seen[t * kAmxWidth + lane] == 0) continue;
      const auto term = [&](int number) {
        const std::uint32_t word =
            scratch.probs[number * kLowProbs + (t - first) / 2 * kAmxWidth + lane];
        return math::to_float(
            math::BFloat16{static_cast<std::uint16_t>((t - first) % 2 == 0 ? word : word >> 16)});
      };
      const float prob = kTerms == 2 ? term(0) + term(1) : term(0);
      for (std::int64_t c = 0; c < problem.value_dim; ++c)
        out[c * kAmxWidth + lane] += math::load<float>(value[c]) * bounds.pass.value_unit * prob;
    }
  }
}

// ---- one panel and its part of a tile of keys ----

// Scores of all blocks, and probabilities of all blocks but the last. Returns the address of the
// last block's scores, which are still in the tile registers. With two terms, all four products of
// terms are computed, which is exact.
template <int kSteps, class Slices>
TILEWISE_INLINE float* score_blocks(const HeadContext& context, const AmxPanelBounds& bounds,
                                    const AmxForwardScratch& scratch, Slices& slices) {
  constexpr int kTerms = Slices::kSlices.terms;
  constexpr TermProducts kProducts = kExactProducts<kTerms>;
  const std::int64_t across = kSteps > 0 ? kSteps : scratch.head_dim / kTileDepth;
  const TermDistance low = {kAmxKeys * scratch.head_dim, scratch.head_dim / 2 * kAmxWidth};
  const std::uint16_t* k = scratch.k_tiles + bounds.slot * kTerms * low.left +
                           bounds.first_block * 2 * across * kTileElements;
  const std::uint32_t* const q = scratch.q_pairs + bounds.panel * kTerms * low.right;
  float* pending = nullptr;
  for (std::int64_t b = 0; b < bounds.blocks; ++b, k += 2 * across * kTileElements) {
    const auto operands = [&](std::int64_t t) {
      const std::uint16_t* const top = k + t * kTileElements;
      return TileOperands{top, top + across * kTileElements, q + t * kTileRows * kAmxWidth,
                          kAmxStride};
    };
    begin_block(first_operands<kProducts>(operands(0), low), nullptr, pending, kAmxStride, slices);
    if (b > 1) end_probs(context, bounds, b - 2, nullptr, scratch, slices);
    if (b > 0) begin_probs(context, bounds, b - 1, scratch, slices);
    add_other_terms<kProducts>(operands(0), low, slices);
#pragma GCC unroll 3
    for (std::int64_t t = 1; t < across; ++t) add_terms<kProducts>(operands(t), low, slices);
    pending = block_scores(b, scratch);
  }
  return pending;
}

// out += V^T P^T over all keys of the bounds, for 32 rows at a time. The probabilities of the last
// block overlap with the first rows, if `pending` is the address of its scores. With two terms,
// three products of terms are computed: that of both low terms is below 2^-16 of the whole.
template <class Slices>
TILEWISE_INLINE void output_blocks(const HeadContext& context, const AmxPanelBounds& bounds,
                                   float* pending, const AmxForwardScratch& scratch,
                                   Slices& slices) {
  constexpr std::int64_t kAcross = kAmxKeys / kTileDepth;
  constexpr int kTerms = Slices::kSlices.terms;
  constexpr TermProducts kProducts = kNearProducts<kTerms>;
  const TermDistance low = {kAmxKeys * scratch.value_dim, kLowProbs};
  const std::uint16_t* v =
      scratch.v_tiles + bounds.slot * kTerms * low.left + bounds.first_block * kTileElements;
  float* out = panel_state(bounds.panel, scratch).out;
  const auto sums = [&] { return bounds.first_visit ? nullptr : out; };
  const auto operands = [&](std::int64_t b) {
    const std::uint16_t* const top = v + b * kTileElements;
    return TileOperands{top, top + kAcross * kTileElements, block_pairs(b, scratch), kAmxStride};
  };
  std::int64_t row = 0;
  NoSlices none;
  if (pending != nullptr) {
    const std::int64_t last = bounds.blocks - 1;
    begin_block(first_operands<kProducts>(operands(0), low), sums(), pending, kAmxStride, slices);
    // This must come before probabilities may be rescaled: the sums with those of the first block
    // are in the tile registers.
    add_other_terms<kProducts>(operands(0), low, slices);
    end_probs(context, bounds, last - 1, out, scratch, slices);
    begin_probs(context, bounds, last, scratch, slices);
    for (std::int64_t b = 1; b < last; ++b) add_terms<kProducts>(operands(b), low, slices);
    end_probs(context, bounds, last, out, scratch, slices);
    add_terms<kProducts>(operands(last), low, none);
    pending = out;
    row += kBlockRows;
    v += 2 * kAcross * kTileElements;
    out += kBlockRows * kAmxWidth;
  }
  for (; row + kBlockRows <= scratch.value_dim; row += kBlockRows) {
    begin_block(first_operands<kProducts>(operands(0), low), sums(), pending, kAmxStride, none);
    add_other_terms<kProducts>(operands(0), low, none);
#pragma GCC unroll 3
    for (std::int64_t b = 1; b < bounds.blocks; ++b) add_terms<kProducts>(operands(b), low, none);
    pending = out;
    v += 2 * kAcross * kTileElements;
    out += kBlockRows * kAmxWidth;
  }
  if (pending != nullptr) store_block(pending, kAmxStride);
  if (row == scratch.value_dim) return;
  begin_flat_block(sums(), kAmxStride);
  for (std::int64_t b = 0; b < bounds.blocks; ++b) add_flat_terms<kProducts>(operands(b), low);
  store_flat_block(out, kAmxStride);
}

// The slices for a block of scores of kSteps steps of 32 columns (0: any number). A step has four
// products (two terms: four steps each), and a block has 16 pairs of keys.
template <int kSteps, int kTerms, bool kExact>
constexpr SlicePlan slice_plan() {
  if (kTerms == 2) return {1, kSteps + (kSteps == 0 ? 1 : 0), 2, kExact};
  return {kSteps == 0 ? 2 : 4 / kSteps, 1, 1, kExact};
}
template <int kSteps, int kTerms, bool kExact>
__attribute__((noinline)) void amx_forward_tile(const HeadContext& context,
                                                const AmxPanelBounds& bounds,
                                                const AmxForwardScratch& scratch) {
  constexpr SlicePlan kPlan = slice_plan<kSteps, kTerms, kExact>();
  ProbSlices<kPlan> slices(ScoreScaling<float>(*context.problem).scale_log2().factor);
  float* pending = score_blocks<kSteps>(context, bounds, scratch, slices);
  const std::int64_t last = bounds.blocks - 1;
  // With few blocks, 32 rows of the output do not have enough products to overlap with.
  constexpr std::int64_t kFew = 16 / (4 * kPlan.pairs) + 2;
  if (bounds.blocks < kFew || scratch.value_dim < kBlockRows) {
    store_block(pending, kAmxStride);
    pending = nullptr;
    if (last > 0) end_probs(context, bounds, last - 1, nullptr, scratch, slices);
    begin_probs(context, bounds, last, scratch, slices);
    end_probs(context, bounds, last, nullptr, scratch, slices);
  }
  output_blocks(context, bounds, pending, scratch, slices);
  if (bounds.pass.slow_path)
    add_non_finite_values<kTerms>(context, bounds, panel_state(bounds.panel, scratch).out, scratch);
}

// ---- all panels of a block of queries ----

// Packs keys [first, first + count) of K and V, unless they are packed already. Returns their slot.
template <int kTerms>
TILEWISE_INLINE std::int64_t pack_tile(const HeadContext& context, std::int64_t first,
                                       std::int64_t count, const AmxPass& pass,
                                       const AmxForwardScratch& scratch) {
  const Problem& problem = *context.problem;
  const std::int64_t slot = first / kAmxKeys % scratch.slots;
  PackedTile& held = scratch.packed[slot];
  const PackedTile wanted = {context.sequence.batch, context.kv_head(), first, count, pass};
  if (held.batch == wanted.batch && held.kv_head == wanted.kv_head && held.first == first &&
      held.count >= count && held.pass == pass)
    return slot;
  held = wanted;
  const std::int64_t row = context.sequence.k_start + first;
  const PageTable* const pages = pages_of(problem);
  const RowBlock k = {&problem.k, wanted.batch,     wanted.kv_head, row,
                      count,      problem.head_dim, pages};
  const RowBlock v = {&problem.v, wanted.batch,      wanted.kv_head, row,
                      count,      problem.value_dim, pages};
  std::uint8_t* const non_finite_values = scratch.non_finite_values + slot * kAmxKeys;
  if (pass.slow_path) flag_non_finite_rows<kTerms>(v, non_finite_values);
  const std::int64_t of_k = kAmxKeys * scratch.head_dim;
  const std::int64_t of_v = kAmxKeys * scratch.value_dim;
  for_each_term<kTerms>([&](auto term, int number) {
    constexpr Term kTerm = decltype(term)::value;
    pack_row_tiles<kTerm>(k, scratch.k_tiles + (slot * kTerms + number) * of_k);
    pack_column_tiles<kTerm>(v, kAmxKeys / kTileDepth, pass.slow_path ? non_finite_values : nullptr,
                             scratch.v_tiles + (slot * kTerms + number) * of_v);
  });
  if (kTerms == 1 && pass.value_unit != 1.0f)  // sums of fp16 are far from overflow
    scale_column_tiles(pass.value_unit, count, scratch.value_dim, scratch.v_tiles + slot * of_v);
  return slot;
}

// context: of the panel and the tile
TILEWISE_INLINE AmxPanelBounds panel_bounds(const QueryBlock& block, std::int64_t panel,
                                            const HeadContext& context, std::int64_t tile,
                                            std::int64_t count) {
  AmxPanelBounds bounds = {};
  bounds.lane0 = block.first + panel * kAmxWidth;
  bounds.lanes = math::min(kAmxWidth, block.rows - panel * kAmxWidth);
  bounds.panel = panel;
  bounds.tile = tile;
  const math::KeyRange own = keys_of_rows(context, bounds.lane0, bounds.lanes);
  bounds.end = math::min(own.end, tile + count);
  bounds.first_block = math::max(own.begin - tile, 0) / kBlockKeys;
  bounds.blocks = math::ceil_div(bounds.end - tile, kBlockKeys) - bounds.first_block;
  const std::int64_t first = tile + bounds.first_block * kBlockKeys;
  if (!ScoreScaling<float>(*context.problem).unscaled) return bounds;
  const math::KeyRange common = common_keys_of_rows(context, bounds.lane0, bounds.lanes);
  bounds.unmasked_begin = math::ceil_div(math::max(common.begin - first, 0), kBlockKeys);
  bounds.unmasked_end = math::max(math::min(common.end, bounds.end) - first, 0) / kBlockKeys;
  return bounds;
}

// The kernel for a head dimension of `steps` steps; fp16 has none for one step.
template <int kTerms, bool kExact>
TILEWISE_INLINE auto amx_forward_tile_for(std::int64_t steps) {
  constexpr int kOne = kTerms == 1 ? 1 : 0;
  return steps == 4   ? amx_forward_tile<4, kTerms, kExact>
         : steps == 2 ? amx_forward_tile<2, kTerms, kExact>
         : steps == 1 ? amx_forward_tile<kOne, kTerms, kExact>
                      : amx_forward_tile<0, kTerms, kExact>;
}

// Calls function(tile) for the tiles of `keys` that a row of the block sees: for the first key of
// each.
template <class Function>
TILEWISE_INLINE void for_each_visible_tile(const QueryBlock& block, math::KeyRange keys,
                                           Function function) {
  const math::KeyRange rows = {block.first, block.first + block.rows};
  for (;;) {
    const math::KeyRange range = next_visible_keys(block.context, rows, keys, kAmxKeys);
    if (range.begin >= range.end) return;
    function(range.begin / kAmxKeys * kAmxKeys);
    keys.begin = math::round_up(range.end, kAmxKeys);
  }
}

template <int kTerms>
TILEWISE_INLINE void amx_visit_keys(const QueryBlock& block, const AmxPass& pass,
                                    const AmxForwardScratch& scratch) {
  const math::KeyRange keys = keys_of_block(block);
  const Problem& problem = *block.context.problem;
  const std::int64_t steps = scratch.head_dim / kTileDepth;
  const auto visit = problem.out.dtype == TILEWISE_FP32
                         ? amx_forward_tile_for<kTerms, true>(steps)
                         : amx_forward_tile_for<kTerms, false>(steps);
  std::uint64_t begun = 0;  // bit p: panel p has visited keys
  static_assert(kMostAmxPanels <= 64, "a bit each");
  for_each_visible_tile(block, keys, [&](std::int64_t tile) {
    // All keys that any part of the block sees, so that they are packed once.
    const std::int64_t count = math::min(tile + kAmxKeys, block.keys.end) - tile;
    if (boolean_mask_hides(block.context, {block.first, block.first + block.rows},
                           {tile, tile + count}))
      return;
    const std::int64_t slot = pack_tile<kTerms>(block.context, tile, count, pass, scratch);
    for (std::int64_t panel = 0; panel * kAmxWidth < block.rows; ++panel) {
      const std::int64_t first = block.first + panel * kAmxWidth;
      const std::int64_t end = math::min(first + kAmxWidth, block.first + block.rows);
      const HeadContext own =
          narrowed(block.context, {first, end}, {tile, tile + count}, scratch.base.bands);
      AmxPanelBounds bounds = panel_bounds(block, panel, own, tile, count);
      if (bounds.end <= tile || bounds.blocks <= 0) continue;
      if (boolean_mask_hides(own, {first, end}, {tile, tile + count})) continue;
      bounds.slot = slot;
      bounds.pass = pass;
      if (pass.slow_path) bounds.unmasked_end = 0;
      bounds.first_visit = (begun >> panel & 1) == 0;
      begun |= std::uint64_t{1} << panel;
      visit(own, bounds, scratch);
    }
  });
  for (std::int64_t panel = 0; panel * kAmxWidth < block.rows; ++panel) {
    if ((begun >> panel & 1) == 0) clear_output<float>(panel, scratch.base);
  }
}

template <int kTerms>
TILEWISE_INLINE void amx_load_queries(const QueryBlock& block, const AmxForwardScratch& scratch) {
  const Problem& problem = *block.context.problem;
  for (std::int64_t panel = 0; panel * kAmxWidth < block.rows; ++panel) {
    for_each_term<kTerms>([&](auto term, int number) {
      pack_bf16_pairs<kAmxWidth, decltype(term)::value>(
          panel_rows(problem.q, block, panel, kAmxWidth, problem.head_dim),
          ScoreScaling<float>(problem).sign < 0, nullptr,
          scratch.q_pairs + (panel * kTerms + number) * scratch.head_dim / 2 * kAmxWidth);
    });
    start_state<float, kAmxWidth>(panel, scratch.base);
  }
}

// Sums and outputs both contain the factor kProbScale, which store_outputs() does not know; it is
// moved into the maximum. Probabilities that dropout kept get their factor.
TILEWISE_INLINE void amx_finalise_rows(const QueryBlock& block, const AmxForwardScratch& scratch) {
  const Problem& problem = *block.context.problem;
  const float shift =
      static_cast<float>(math::kLn2) * math::log2(kProbScale) / ScoreScaling<float>(problem).factor;
  for (std::int64_t i = 0; i < block.rows; ++i) scratch.base.max[i] -= shift;
  apply_dropout_scale<float, kAmxWidth>(block, scratch.base);
}

TILEWISE_INLINE bool amx_block_is_finite(const QueryBlock& block,
                                         const ForwardScratch<float>& scratch) {
  const std::int64_t value_dim = block.context.problem->value_dim;
  for (std::int64_t panel = 0; panel * kAmxWidth < block.rows; ++panel) {
    const std::int64_t lanes = math::min(kAmxWidth, block.rows - panel * kAmxWidth);
    if (!all_finite<float, kAmxWidth>(scratch.out_panels + panel * scratch.out_panel, value_dim,
                                      lanes))
      return false;
  }
  return true;
}

// Computes the states of the rows of a block; they stay in the scratch.
template <int kTerms>
TILEWISE_INLINE void amx_forward_block(const RunContext& run, const QueryBlock& block,
                                       const AmxForwardScratch& scratch) {
  // Tile products flush denormals. Denormal probabilities would make the exponential's instruction
  // ten times as slow, so that they are flushed too. The mode of the thread is restored before the
  // outputs are stored.
  const unsigned mode = _mm_getcsr();
  AmxPass pass = first_pass(block);
  for (;; pass = next_pass(block, pass)) {
    amx_load_queries<kTerms>(block, scratch);
    _mm_setcsr(mode | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
    configure_tiles();
    if (pass.slow_path) count_contained_step(run);
    amx_visit_keys<kTerms>(block, pass, scratch);
    release_tiles();
    _mm_setcsr(mode);
    if (pass.slow_path || amx_block_is_finite(block, scratch.base)) break;
  }
  for (std::int64_t panel = 0; panel * kAmxWidth < block.rows; ++panel)
    scratch.base.out_unit[panel] = pass.value_unit;
}

// K and V are counted for every block, even if it reads their packed copy.
TILEWISE_INLINE void count_block_traffic(const RunContext& run, const QueryBlock& block) {
  const Problem& problem = *block.context.problem;
  const math::KeyRange keys = keys_of_block(block);
  std::int64_t visited = 0;
  for_each_visible_tile(block, keys, [&](std::int64_t tile) {
    visited += math::min(tile + kAmxKeys, keys.end) - tile;
  });
  count_traffic(run, visited * (problem.head_dim + problem.value_dim) * 2, 0);
  count_query_traffic(run, block);
}

// The policy of AMX, for bf16 (one term) and fp16 (two terms).
template <int kTerms>
struct AmxForward {
  using Number = float;
  using Factor = float;
  static constexpr int kWidth = kAmxWidth;
  static constexpr std::int64_t kKeyGrid = kAmxKeys;
  static constexpr std::int64_t kSplitKeys =
      4 * kAmxKeys;  // the products take less time than those of SimdForward
  AmxForwardScratch scratch;
  std::int64_t rows;

  static AmxForward take(const Problem& problem, std::int64_t concurrency, Arena& arena) {
    const BlockSize size =
        block_size<AmxForward>(problem, amx_blocking<kTerms>(problem).panels, concurrency);
    return {take_amx_forward_scratch<kTerms>(problem, size.panels, arena), size.rows};
  }
  const ForwardScratch<float>& state() const { return scratch.base; }
  // The workspace is garbage at first: no slot is packed.
  void reset() const {
    for (std::int64_t s = 0; s < scratch.slots; ++s) scratch.packed[s].batch = -1;
  }
  void compute(const RunContext& run, const QueryBlock& block) const {
    amx_forward_block<kTerms>(run, block, scratch);
  }
  void finalise(const QueryBlock& block) const { amx_finalise_rows(block, scratch); }
  // Where all keys stay packed, a panel visits all of them before the next panel begins, so that
  // its Q, its sums and the end of its rows stay in the L1 and the L2.
  std::int64_t rows_at_once(const QueryBlock& block) const {
    return block.context.sequence.k_len <= scratch.slots * kAmxKeys ? kAmxWidth : block.rows;
  }
  void count_traffic(const RunContext& run, const QueryBlock& block) const {
    count_block_traffic(run, block);
  }
};

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AMX
