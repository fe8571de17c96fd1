// The five products of the backward pass in bf16 pairs: a panel of 32 keys meets a tile of queries
// in blocks of 32: scores and dP, and under the products of the next block P and dS, in slices
// (pair_gradient.h). Then dV and dK are one product each over all the tile's queries, and once all
// panels have been there, dQ is one over all their keys.
//
// Two terms, fp16: scores take all four products of terms, and so are those of the forward pass: a
// row of scores of thousands keeps its probabilities. So does dP: in rows of few keys its
// difference with delta is all rounding. dV, dK and dQ take three.
#pragma once

#include "cpu/pair_backward_operands.h"
#include "cpu/pair_terms.h"
#include "math/integer.h"

#if TILEWISE_HAS_TILES

namespace tilewise::cpu::TILEWISE_TARGET {

// A tile of queries of one head: groups of 32, counted from its first row.
struct PairQueryTile {
  std::int64_t first;  // row of the sequence
  std::int64_t end;    // of the rows that see the block
  const std::uint16_t* q_rows;
  const std::uint16_t* q_columns;
  const std::uint16_t* dout_rows;
  const std::uint16_t* dout_columns;
  const std::uint8_t* odd;  // of groups, in two terms
};

// The groups of a tile that see a panel of keys.
struct PanelFrame {
  std::int64_t panel;
  std::int64_t lane0;
  std::int64_t lanes;
  std::int64_t first_group;
  std::int64_t end_group;
  bool first_visit;    // dK and dV start from zero
  bool first_of_tile;  // no panel of the block has been there: the tile is beyond the L2
};

// Asks for what the next group brings, at the first visit of a tile: the first lines of each page.
// The hardware goes on within a page. 20 or 32 lines gained half as much as 12: they take the
// buffers that loads wait in.
TILEWISE_INLINE void ask_for_part(const PanelFrame& frame, const std::uint16_t* part,
                                  std::int64_t numbers) {
  constexpr std::int64_t kPage = 4096;
  constexpr int kLines = 12;
  if (!frame.first_of_tile) return;
  const std::int64_t pages = math::ceil_div(numbers * 2, kPage);
  Ahead(part, pages, kLines * Ahead::kLine, kPage).ask(kLines * static_cast<int>(pages));
}

// ---- one block: S, dP and what becomes of them ----

template <int kTerms>
TILEWISE_INLINE GradientBlock gradient_block(const PanelFrame& frame, std::int64_t group,
                                             const PairKeyScratch& scratch) {
  constexpr std::int64_t kPairs = kTerms * kLowPairs;
  constexpr std::int64_t kTileWords = kTerms * kTileElements / 2;
  const float* const exponents = kTerms == 2 ? scratch.lse : scratch.exponents;
  float* const scores = scratch.blocks + group % 2 * 2 * kBlockQueries * kPairWidth;
  return {scores,
          scores + kBlockQueries * kPairWidth,
          exponents + group * kBlockQueries,
          scratch.delta + group * kBlockQueries,
          scratch.prob_pairs + group * kPairs,
          scratch.gradient_pairs + group * kPairs,
          scratch.gradient_rows + (group * 2 * scratch.panels + frame.panel) * kTileWords,
          scratch.panels * kTileWords};
}

// S and dP of the group are in memory.
template <class Slices>
TILEWISE_INLINE void begin_gradients(const HeadContext& context, const PairQueryTile& tile,
                                     const PanelFrame& frame, std::int64_t group,
                                     const PairKeyScratch& scratch, Slices& slices) {
  constexpr int kTerms = Slices::kTerms;
  const GradientBlock block = gradient_block<kTerms>(frame, group, scratch);
  const std::int64_t row = tile.first + group * kBlockQueries;
  const Frame at = {frame.lane0, frame.lanes, row, math::min(kBlockQueries, tile.end - row)};
  if (scratch.usual[group] && frame.lanes == kPairWidth &&
      classify(context, Lanes::kKeys, at) == TileClass::kFull) {
    slices.begin(block);
    return;
  }
  GradientScratch<float> general = scratch.plain.gradient;
  general.lse = scratch.lse + group * kBlockQueries;
  general.delta = scratch.delta + group * kBlockQueries;
  finish_gradients<kTerms>(context, at, block, kTerms == 2 && tile.odd[group] != 0, general);
}

// Rows of Q times keys, or of dO times values: in steps of 32 columns.
struct RowProduct {
  const std::uint16_t* rows;
  const std::uint32_t* pairs;
  std::int64_t steps;

  TILEWISE_INLINE TileOperands operands(std::int64_t t) const {
    return {rows + t * kTileElements, rows + (steps + t) * kTileElements,
            pairs + t * kTileRows * kPairWidth, kPairStride};
  }
  TILEWISE_INLINE TermDistance low() const {
    return {steps * 2 * kTileElements, steps * kTileRows * kPairWidth};
  }
};

// All but what begin_block() has done.
template <TermProducts kProducts, class Slices>
TILEWISE_INLINE void add_steps(const RowProduct& product, Slices& slices) {
  add_other_terms<kProducts>(product.operands(0), product.low(), slices);
#pragma GCC unroll 3
  for (std::int64_t t = 1; t < product.steps; ++t)
    add_terms<kProducts>(product.operands(t), product.low(), slices);
}

// S = Q K^T and dP = dO V^T of every group, and P and dS of all but the last. Returns where the
// last one's dP, still in the tile registers, belongs.
template <class Slices>
TILEWISE_INLINE float* score_groups(const HeadContext& context, const PairQueryTile& tile,
                                    const PanelFrame& frame, const PairKeyScratch& scratch,
                                    Slices& slices) {
  constexpr int kTerms = Slices::kTerms;
  constexpr TermProducts kProducts = kExactProducts<kTerms>;
  const std::int64_t of_q = kTerms * kBlockQueries * scratch.head_dim;
  const std::int64_t of_dout = kTerms * kBlockQueries * scratch.value_dim;
  RowProduct scores = {nullptr,
                       scratch.k_pairs + frame.panel * kTerms * scratch.head_dim / 2 * kPairWidth,
                       scratch.head_dim / kTileDepth};
  RowProduct dprobs = {nullptr,
                       scratch.v_pairs + frame.panel * kTerms * scratch.value_dim / 2 * kPairWidth,
                       scratch.value_dim / kTileDepth};
  float* pending = nullptr;
  for (std::int64_t group = frame.first_group; group < frame.end_group; ++group) {
    scores.rows = tile.q_rows + group * of_q;
    dprobs.rows = tile.dout_rows + group * of_dout;
    ask_for_part(frame, scores.rows + of_q, of_q);
    ask_for_part(frame, dprobs.rows + of_dout, of_dout);
    begin_block(scores.operands(0), nullptr, pending, kPairStride, slices);
    slices.rest();
    if (group > frame.first_group)
      begin_gradients(context, tile, frame, group - 1, scratch, slices);
    add_steps<kProducts>(scores, slices);
    const GradientBlock block = gradient_block<kTerms>(frame, group, scratch);
    begin_block(dprobs.operands(0), nullptr, block.scores, kPairStride, slices);
    add_steps<kProducts>(dprobs, slices);
    pending = block.dprobs;
  }
  return pending;
}

// ---- dV and dK ----

// sums += columns * pairs over the groups of a tile, 32 rows of the sums at a time.
template <int kTerms>
struct ColumnProduct {
  static constexpr TermProducts kProducts = kNearProducts<kTerms>;

  const std::uint16_t* columns;  // dO^T or Q^T of the tile
  std::int64_t rows;             // of them
  const std::uint32_t* pairs;
  float* sums;

  TILEWISE_INLINE TileOperands operands(std::int64_t group, std::int64_t row) const {
    const std::uint16_t* const top = columns + (group * kTerms * rows + row) * kBlockQueries;
    return {top, top + kTileElements, pairs + group * kTerms * kLowPairs, kPairStride};
  }
  TILEWISE_INLINE TermDistance low() const { return {rows * kBlockQueries, kLowPairs}; }
  // Returns where they belong.
  template <class Slices>
  TILEWISE_INLINE float* begin(const PanelFrame& frame, std::int64_t row, float* pending,
                               Slices& slices) const {
    float* const to = sums + row * kPairWidth;
    begin_block(first_operands<kProducts>(operands(frame.first_group, row), low()),
                frame.first_visit ? nullptr : to, pending, kPairStride, slices);
    return to;
  }
  template <class Slices>
  TILEWISE_INLINE void go_on(const PanelFrame& frame, std::int64_t row, Slices& slices) const {
    add_other_terms<kProducts>(operands(frame.first_group, row), low(), slices);
  }
  template <class Slices>
  TILEWISE_INLINE void add(std::int64_t group, std::int64_t row, Slices& slices) const {
    add_terms<kProducts>(operands(group, row), low(), slices);
  }
};

// Over all groups of the frame, from `row` on. Returns where the last rows, still in the tile
// registers, belong.
template <int kTerms>
TILEWISE_INLINE float* add_columns(const PanelFrame& frame, const ColumnProduct<kTerms>& product,
                                   std::int64_t row, float* pending) {
  NoSlices none;
  for (; row < product.rows; row += 32) {
    pending = product.begin(frame, row, pending, none);
    product.go_on(frame, row, none);
#pragma GCC unroll 4
    for (std::int64_t group = frame.first_group + 1; group < frame.end_group; ++group) {
      const std::uint16_t* const next = product.operands(group + 1, row).top;
      for (int term = 0; term < kTerms && group + 1 < frame.end_group; ++term)
        ask_for_part(frame, next + term * product.low().left, 2 * kTileElements);
      product.add(group, row, none);
    }
  }
  return pending;
}

// The first 32 rows of dV, with the last group's P and dS under them: `pending` says where its dP
// belongs.
template <class Slices>
TILEWISE_INLINE float* begin_columns(const HeadContext& context, const PairQueryTile& tile,
                                     const PanelFrame& frame,
                                     const ColumnProduct<Slices::kTerms>& product, float* pending,
                                     const PairKeyScratch& scratch, Slices& slices) {
  const std::int64_t last = frame.end_group - 1;
  float* const to = product.begin(frame, 0, pending, slices);
  slices.rest();
  begin_gradients(context, tile, frame, last, scratch, slices);
  product.go_on(frame, 0, slices);
  for (std::int64_t group = frame.first_group + 1; group < last; ++group)
    product.add(group, 0, slices);
  slices.rest();
  product.add(last, 0, slices);
  return to;
}

// A panel of keys meets a tile of queries: its part of dV and dK, and dS for dQ.
// kPlan: so that the 16 pairs of queries of a block end with its products
template <SlicePlan kPlan>
__attribute__((noinline)) void pair_key_tile(const HeadContext& context, const PairQueryTile& tile,
                                             const PanelFrame& frame,
                                             const PairKeyScratch& scratch) {
  const Problem& problem = *context.problem;
  constexpr int kTerms = kPlan.terms;
  const ColumnProduct<kTerms> dv = {
      tile.dout_columns, scratch.value_dim, scratch.prob_pairs,
      scratch.dv_panels + frame.panel * scratch.value_dim * kPairWidth};
  const ColumnProduct<kTerms> dk = {
      tile.q_columns, scratch.head_dim, scratch.gradient_pairs,
      scratch.dk_panels + frame.panel * scratch.head_dim * kPairWidth};
  GradientSlices<kPlan> slices(ScoreUnits<float>(problem).exponent());
  float* pending = score_groups(context, tile, frame, scratch, slices);
  // With few groups, there are not enough products in 32 rows of dV.
  constexpr std::int64_t kFew = kTerms == 2 ? 4 : 8;
  std::int64_t done = 0;
  if (problem.dv.present() && frame.end_group - frame.first_group >= kFew) {
    pending = begin_columns(context, tile, frame, dv, pending, scratch, slices);
    done = 32;
  } else {
    store_block(pending, kPairStride);
    pending = nullptr;
    slices.rest();
    begin_gradients(context, tile, frame, frame.end_group - 1, scratch, slices);
    slices.rest();
  }
  if (problem.dv.present()) pending = add_columns(frame, dv, done, pending);
  if (problem.dk.present()) pending = add_columns(frame, dk, 0, pending);
  if (pending != nullptr) store_block(pending, kPairStride);
}

// ---- dQ ----

// Asks for memory after every step.
class AheadSlices {
 public:
  TILEWISE_INLINE explicit AheadSlices(const Ahead& ahead) : ahead_(ahead) {}
  template <int kProduct>
  TILEWISE_INLINE void slice() {
    if constexpr (kProduct == 3) ahead_.ask_share();
  }

 private:
  Ahead ahead_;
};

// sums += dS K of one group, over the panels that it sees. Keys stream, as right operands; the
// group's dS stays in the L1 for all columns.  stride: bytes of a row of the sums; slices: under
// the products. Returns where the last columns, still in the tile registers, belong.
template <int kTerms>
TILEWISE_INLINE float* add_group_to_dq(std::int64_t group, const PanelFrame* frames,
                                       std::int64_t count, float* sums, std::int64_t stride,
                                       float* pending, AheadSlices slices,
                                       const PairKeyScratch& scratch) {
  const std::uint16_t* const rows = reinterpret_cast<const std::uint16_t*>(scratch.gradient_rows) +
                                    group * 2 * kTerms * scratch.panels * kTileElements;
  constexpr TermProducts kProducts = kNearProducts<kTerms>;
  const TermDistance low = {kTileElements, scratch.head_dim * kTileRows};
  for (std::int64_t column = 0; column < scratch.head_dim; column += 32) {
    bool begun = false;
    for (std::int64_t p = 0; p < count; ++p) {
      const PanelFrame& frame = frames[p];
      if (group < frame.first_group || group >= frame.end_group) continue;
      const std::uint16_t* const top = rows + frame.panel * kTerms * kTileElements;
      const TileOperands operands = {
          top, top + scratch.panels * kTerms * kTileElements,
          scratch.key_words + (frame.panel * kTerms * scratch.head_dim + column) * kTileRows,
          kPairStride};
      const TileOperands first = first_operands<kProducts>(operands, low);
      if (begun) {
        add_step<Streamed::kRight>(first, slices);
      } else {
        begin_block<Streamed::kRight>(first, sums + column, pending, stride, slices);
      }
      add_other_terms<kProducts, Streamed::kRight>(operands, low, slices);
      begun = true;
    }
    if (begun) pending = sums + column;
  }
  return pending;
}

template <int kTerms>
TILEWISE_INLINE void add_tile_to_dq(const HeadContext& context, const PairQueryTile& tile,
                                    const PanelFrame* frames, std::int64_t count,
                                    const QueryGradient<float>& gradient,
                                    const PairKeyScratch& scratch) {
  const std::int64_t stride = gradient.row * 4;
  float* pending = nullptr;
  std::int64_t row = tile.first;
  for (; row + kBlockQueries <= context.sequence.q_len && row < tile.end; row += kBlockQueries) {
    float* const sums = gradient.at(context, row);
    // The next group's sums come from beyond the L2.
    Ahead ahead(sums + kBlockQueries * gradient.row, 1, kBlockQueries * stride, 0);
    ahead.share_out(count * scratch.head_dim / 32);
    pending = add_group_to_dq<kTerms>((row - tile.first) / kBlockQueries, frames, count, sums,
                                      stride, pending, AheadSlices(ahead), scratch);
  }
  if (pending != nullptr) store_block(pending, stride);
  if (row >= tile.end) return;
  // Fewer than 32 rows: the next ones are another sequence's. Sums go on from where they are, as
  // above: how many panels go together must not show.
  float* const sums = gradient.at(context, row);
  const std::int64_t count_left = (context.sequence.q_len - row) * gradient.row;
  for (std::int64_t i = 0; i < kBlockQueries * gradient.row; ++i)
    scratch.rest[i] = i < count_left ? sums[i] : 0;
  pending = add_group_to_dq<kTerms>((row - tile.first) / kBlockQueries, frames, count, scratch.rest,
                                    stride, nullptr, AheadSlices({}), scratch);
  if (pending != nullptr) store_block(pending, stride);
  for (std::int64_t i = 0; i < count_left; ++i) sums[i] = scratch.rest[i];
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_TILES
