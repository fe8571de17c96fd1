// The forward pass for bf16 on the matrix unit: forward.h's blocks and panels, with both products
// in bf16 pairs and fp32 sums. A panel of 32 queries meets a tile of keys in two steps: block by
// block of 32 keys, scores and their softmax, which leaves weights in bf16; then one product of all
// these weights with V. The softmax of a block runs in slices under the products of the next one:
// the unit works while the vector ports do.
#pragma once

#include "cpu/pair_block.h"
#include "cpu/pair_terms.h"
#include "math/integer.h"

#if TILEWISE_HAS_TILES

namespace tilewise::cpu::TILEWISE_TARGET {

// The rows of V that are not finite took part as zeros: each is added to the lanes that see it, and
// to no others.
template <int kTerms>
TILEWISE_INLINE void add_odd_values(const HeadContext& context, const PairFrame& frame, float* out,
                                    const PairScratch& scratch) {
  using S = PairNumber<kTerms>;
  const Problem& problem = *context.problem;
  const std::int64_t first = frame.first_block * kBlockKeys;
  for (std::int64_t t = first; t < frame.end - frame.tile; ++t) {
    if (scratch.odd_values[frame.slot * kPairKeys + t] == 0) continue;
    const S* const value = static_cast<const S*>(problem.v.data) +
                           problem.v.offset(context.sequence.batch, context.kv_head(),
                                            context.sequence.k_start + frame.tile + t);
    for (int lane = 0; lane < kPairWidth; ++lane) {
      if (scratch.seen[t * kPairWidth + lane] == 0) continue;
      const auto term = [&](int number) {
        const std::uint32_t word =
            scratch.weights[number * kLowWeights + (t - first) / 2 * kPairWidth + lane];
        return math::to_float(
            math::BFloat16{static_cast<std::uint16_t>((t - first) % 2 == 0 ? word : word >> 16)});
      };
      const float weight = kTerms == 2 ? term(0) + term(1) : term(0);
      for (std::int64_t c = 0; c < problem.value_dim; ++c)
        out[c * kPairWidth + lane] += math::load<float>(value[c]) * weight;
    }
  }
}

// ---- a panel and its part of a tile ----

// Scores of all blocks, and the weights of all but the last. Returns where the last one's scores,
// still in the tile registers, belong. In two terms, all four products of terms are taken: exact.
template <int kSteps, class Slices>
TILEWISE_INLINE float* score_blocks(const HeadContext& context, const PairFrame& frame,
                                    const PairScratch& scratch, Slices& slices) {
  constexpr int kTerms = Slices::kSlices.terms;
  constexpr TermProducts kProducts = kExactProducts<kTerms>;
  const std::int64_t across = kSteps > 0 ? kSteps : scratch.head_dim / kTileDepth;
  const TermDistance low = {kPairKeys * scratch.head_dim, scratch.head_dim / 2 * kPairWidth};
  const std::uint16_t* k = scratch.k_tiles + frame.slot * kTerms * low.left +
                           frame.first_block * 2 * across * kTileElements;
  const std::uint32_t* const q = scratch.q_pairs + frame.panel * kTerms * low.right;
  float* pending = nullptr;
  for (std::int64_t b = 0; b < frame.blocks; ++b, k += 2 * across * kTileElements) {
    const auto operands = [&](std::int64_t t) {
      const std::uint16_t* const top = k + t * kTileElements;
      return TileOperands{top, top + across * kTileElements, q + t * kTileRows * kPairWidth,
                          kPairStride};
    };
    begin_block(first_operands<kProducts>(operands(0), low), nullptr, pending, kPairStride, slices);
    if (b > 1) end_weights(context, frame, b - 2, nullptr, scratch, slices);
    if (b > 0) begin_weights(context, frame, b - 1, scratch, slices);
    add_other_terms<kProducts>(operands(0), low, slices);
#pragma GCC unroll 3
    for (std::int64_t t = 1; t < across; ++t) add_terms<kProducts>(operands(t), low, slices);
    pending = block_scores(b, scratch);
  }
  return pending;
}

// out += V^T P^T, over all keys of the frame, 32 rows at a time. The last block's weights are made
// under the first rows, if `pending` says where its scores belong. In two terms, three products:
// that of both low ones is below 2^-16 of the whole.
template <class Slices>
TILEWISE_INLINE void output_blocks(const HeadContext& context, const PairFrame& frame,
                                   float* pending, const PairScratch& scratch, Slices& slices) {
  constexpr std::int64_t kAcross = kPairKeys / kTileDepth;
  constexpr int kTerms = Slices::kSlices.terms;
  constexpr TermProducts kProducts = kNearProducts<kTerms>;
  const TermDistance low = {kPairKeys * scratch.value_dim, kLowWeights};
  const std::uint16_t* v =
      scratch.v_tiles + frame.slot * kTerms * low.left + frame.first_block * kTileElements;
  float* out = panel_state(frame.panel, scratch).out;
  const auto sums = [&] { return frame.fresh ? nullptr : out; };
  const auto operands = [&](std::int64_t b) {
    const std::uint16_t* const top = v + b * kTileElements;
    return TileOperands{top, top + kAcross * kTileElements, block_pairs(b, scratch), kPairStride};
  };
  std::int64_t row = 0;
  NoSlices none;
  if (pending != nullptr) {
    const std::int64_t last = frame.blocks - 1;
    begin_block(first_operands<kProducts>(operands(0), low), sums(), pending, kPairStride, slices);
    // Before weights may be scaled: those of the first block are in the tile registers.
    add_other_terms<kProducts>(operands(0), low, slices);
    end_weights(context, frame, last - 1, out, scratch, slices);
    begin_weights(context, frame, last, scratch, slices);
    for (std::int64_t b = 1; b < last; ++b) add_terms<kProducts>(operands(b), low, slices);
    end_weights(context, frame, last, out, scratch, slices);
    add_terms<kProducts>(operands(last), low, none);
    pending = out;
    row += kBlockRows;
    v += 2 * kAcross * kTileElements;
    out += kBlockRows * kPairWidth;
  }
  for (; row + kBlockRows <= scratch.value_dim; row += kBlockRows) {
    begin_block(first_operands<kProducts>(operands(0), low), sums(), pending, kPairStride, none);
    add_other_terms<kProducts>(operands(0), low, none);
#pragma GCC unroll 3
    for (std::int64_t b = 1; b < frame.blocks; ++b) add_terms<kProducts>(operands(b), low, none);
    pending = out;
    v += 2 * kAcross * kTileElements;
    out += kBlockRows * kPairWidth;
  }
  if (pending != nullptr) store_block(pending, kPairStride);
  if (row == scratch.value_dim) return;
  begin_flat_block(sums(), kPairStride);
  for (std::int64_t b = 0; b < frame.blocks; ++b) add_flat_terms<kProducts>(operands(b), low);
  store_flat_block(out, kPairStride);
}

// kSteps: of a block of scores, 32 columns each; 0: any number. A block has four products a step
// (and four steps in two terms), and in them its 16 pairs of keys.
template <int kSteps, int kTerms, bool kExact>
constexpr SlicePlan slice_plan() {
  if (kTerms == 2) return {1, kSteps + (kSteps == 0 ? 1 : 0), 2, kExact};
  return {kSteps == 0 ? 2 : 4 / kSteps, 1, 1, kExact};
}
template <int kSteps, int kTerms, bool kExact>
__attribute__((noinline)) void pair_tile(const HeadContext& context, const PairFrame& frame,
                                         const PairScratch& scratch) {
  constexpr SlicePlan kPlan = slice_plan<kSteps, kTerms, kExact>();
  WeightSlices<kPlan> slices(ScoreUnits<float>(*context.problem).exponent().factor);
  float* pending = score_blocks<kSteps>(context, frame, scratch, slices);
  const std::int64_t last = frame.blocks - 1;
  // With few blocks, there are not enough products in 32 rows of the output.
  constexpr std::int64_t kFew = 16 / (4 * kPlan.pairs) + 2;
  if (frame.blocks < kFew || scratch.value_dim < kBlockRows) {
    store_block(pending, kPairStride);
    pending = nullptr;
    if (last > 0) end_weights(context, frame, last - 1, nullptr, scratch, slices);
    begin_weights(context, frame, last, scratch, slices);
    end_weights(context, frame, last, nullptr, scratch, slices);
  }
  output_blocks(context, frame, pending, scratch, slices);
  if (frame.careful)
    add_odd_values<kTerms>(context, frame, panel_state(frame.panel, scratch).out, scratch);
}

// ---- all panels of a block of queries ----

// Packs keys [first, first + count) of K and V, unless they are. Returns their slot.
template <int kTerms>
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
  if (careful) mark_odd_rows<kTerms>(v, odd_values);
  const std::int64_t of_k = kPairKeys * scratch.head_dim;
  const std::int64_t of_v = kPairKeys * scratch.value_dim;
  for_each_term<kTerms>([&](auto term, int number) {
    constexpr Term kTerm = decltype(term)::value;
    pack_row_tiles<kTerm>(k, scratch.k_tiles + (slot * kTerms + number) * of_k);
    pack_column_tiles<kTerm>(v, kPairKeys / kTileDepth, careful ? odd_values : nullptr,
                             scratch.v_tiles + (slot * kTerms + number) * of_v);
  });
  return slot;
}

TILEWISE_INLINE PairFrame panel_frame(const QueryBlock& block, std::int64_t panel,
                                      std::int64_t tile, std::int64_t count) {
  const HeadContext& context = block.context;
  PairFrame frame = {};
  frame.lane0 = block.first + panel * kPairWidth;
  frame.lanes = math::min(kPairWidth, block.rows - panel * kPairWidth);
  frame.panel = panel;
  frame.tile = tile;
  const math::KeyRange own = keys_of_rows(context, frame.lane0, frame.lanes);
  frame.end = math::min(own.end, tile + count);
  frame.first_block = math::max(own.begin - tile, 0) / kBlockKeys;
  frame.blocks = math::ceil_div(frame.end - tile, kBlockKeys) - frame.first_block;
  const std::int64_t first = tile + frame.first_block * kBlockKeys;
  if (!ScoreUnits<float>(*context.problem).plain) return frame;
  const math::KeyRange common = common_keys_of_rows(context, frame.lane0, frame.lanes);
  frame.plain_begin = math::ceil_div(math::max(common.begin - first, 0), kBlockKeys);
  frame.plain_end = math::max(math::min(common.end, frame.end) - first, 0) / kBlockKeys;
  return frame;
}

// The kernel of a head dimension of so many steps; fp16 has none for one.
template <int kTerms, bool kExact>
TILEWISE_INLINE auto pair_tile_of(std::int64_t steps) {
  constexpr int kOne = kTerms == 1 ? 1 : 0;
  return steps == 4   ? pair_tile<4, kTerms, kExact>
         : steps == 2 ? pair_tile<2, kTerms, kExact>
         : steps == 1 ? pair_tile<kOne, kTerms, kExact>
                      : pair_tile<0, kTerms, kExact>;
}

template <int kTerms>
TILEWISE_INLINE void visit_keys_in_pairs(const QueryBlock& block, bool careful,
                                         const PairScratch& scratch) {
  const math::KeyRange keys = keys_of_block(block);
  const Problem& problem = *block.context.problem;
  const std::int64_t steps = scratch.head_dim / kTileDepth;
  const auto visit = problem.out.dtype == TILEWISE_FP32 ? pair_tile_of<kTerms, true>(steps)
                                                        : pair_tile_of<kTerms, false>(steps);
  std::uint64_t begun = 0;  // panels that have met keys
  static_assert(kMostPairPanels <= 64, "a bit each");
  for (std::int64_t tile = keys.begin / kPairKeys * kPairKeys; tile < keys.end; tile += kPairKeys) {
    // All that any part of the block sees, so that it is packed once.
    const std::int64_t count = math::min(tile + kPairKeys, block.keys.end) - tile;
    const std::int64_t slot = pack_tile<kTerms>(block.context, tile, count, careful, scratch);
    for (std::int64_t panel = 0; panel * kPairWidth < block.rows; ++panel) {
      PairFrame frame = panel_frame(block, panel, tile, count);
      if (frame.end <= tile || frame.blocks <= 0) continue;
      frame.slot = slot;
      frame.careful = careful;
      if (careful) frame.plain_end = 0;
      frame.fresh = (begun >> panel & 1) == 0;
      begun |= std::uint64_t{1} << panel;
      visit(block.context, frame, scratch);
    }
  }
  for (std::int64_t panel = 0; panel * kPairWidth < block.rows; ++panel) {
    if ((begun >> panel & 1) == 0) clear_output<float>(panel, scratch.plain);
  }
}

template <int kTerms>
TILEWISE_INLINE void load_query_pairs(const QueryBlock& block, const PairScratch& scratch) {
  const Problem& problem = *block.context.problem;
  for (std::int64_t panel = 0; panel * kPairWidth < block.rows; ++panel) {
    for_each_term<kTerms>([&](auto term, int number) {
      pack_pairs<kPairWidth, decltype(term)::value>(
          panel_rows(problem.q, block, panel, kPairWidth, problem.head_dim),
          ScoreUnits<float>(problem).packed < 0, nullptr,
          scratch.q_pairs + (panel * kTerms + number) * scratch.head_dim / 2 * kPairWidth);
    });
    start_state<float, kPairWidth>(panel, scratch.plain);
  }
}

// Weights carry a factor that store_outputs() does not know, sums and outputs alike: it goes into
// the maximum. What dropout left gets its factor.
TILEWISE_INLINE void settle_rows(const QueryBlock& block, const PairScratch& scratch) {
  const Problem& problem = *block.context.problem;
  const float shift =
      static_cast<float>(math::kLn2) * math::log2(kUnitWeight) / ScoreUnits<float>(problem).natural;
  for (std::int64_t i = 0; i < block.rows; ++i) scratch.plain.max[i] -= shift;
  scale_kept<float, kPairWidth>(block, scratch.plain);
}

// The states of a block's rows, left in the scratch.
template <int kTerms>
TILEWISE_INLINE void forward_block_in_pairs(const QueryBlock& block, const PairScratch& scratch) {
  // The unit flushes denormals. Weights that are some would take the exponential's instruction ten
  // times as long; the thread's mode comes back before the outputs are stored.
  const unsigned mode = _mm_getcsr();
  for (bool careful = false;; careful = true) {
    load_query_pairs<kTerms>(block, scratch);
    _mm_setcsr(mode | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
    configure_tiles();
    visit_keys_in_pairs<kTerms>(block, careful, scratch);
    release_tiles();
    _mm_setcsr(mode);
    if (careful || block_is_finite<float, kPairWidth>(block, scratch.plain)) break;
  }
}

// K and V are counted for every block, if from their packed copy.
TILEWISE_INLINE void count_block_traffic(const RunContext& run, const QueryBlock& block) {
  const Problem& problem = *block.context.problem;
  const math::KeyRange keys = keys_of_block(block);
  count_traffic(run,
                math::max(keys.end - keys.begin / kPairKeys * kPairKeys, 0) *
                    (problem.head_dim + problem.value_dim) * 2,
                0);
  count_query_traffic(run, block);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_TILES
