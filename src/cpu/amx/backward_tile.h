// The five products of the backward pass on AMX. A panel of 32 keys visits a tile of queries in
// blocks of 32: S and dP are computed block by block, and P and dS of a block in slices that
// overlap with the products of the next block (backward_block.h). Then dV and dK are one product
// each over all queries of the tile. After all panels have visited the tile, dQ is one product over
// all their keys.
//
// With two terms (fp16), scores take all four products of terms, and so are those of the forward
// pass; therefore a row with scores of thousands keeps its probabilities. dP takes all four as
// well, because in rows of few keys its difference from delta consists of rounding errors. dV, dK
// and dQ take three.
#pragma once

#include "cpu/amx/backward_packing.h"
#include "cpu/amx/fp16_terms.h"
#include "math/integer.h"

#if TILEWISE_HAS_AMX

namespace tilewise::cpu::TILEWISE_TARGET {

// A tile of queries of one head, in groups of 32, counted from the tile's first row.
struct AmxQueryTile {
  std::int64_t first;  // row of the sequence
  std::int64_t end;    // of the rows that see the block
  const std::uint16_t* q_rows;
  const std::uint16_t* q_columns;
  const std::uint16_t* dout_rows;
  const std::uint16_t* dout_columns;
  const std::uint8_t* non_finite;  // of the groups; only for two terms
};

// The groups of a tile that see a panel of keys.
struct KeyPanelBounds {
  std::int64_t panel;
  std::int64_t lane0;
  std::int64_t lanes;
  std::int64_t first_group;
  std::int64_t end_group;
  bool first_visit;    // dK and dV start from zero
  bool first_of_tile;  // no other panel of the block has visited the tile, which is therefore not
                       // in the L2
};

// Prefetches the first 12 lines of each page of the next group's operands, at the first visit of a
// tile. The hardware continues within a page. 20 or 32 lines gained half as much, because they take
// the buffers that loads wait in.
TILEWISE_INLINE void prefetch_first_lines(const KeyPanelBounds& bounds, const std::uint16_t* part,
                                          std::int64_t numbers) {
  constexpr std::int64_t kPage = 4096;
  constexpr std::int64_t kBytes = 12 * Prefetcher::kLine;
  if (!bounds.first_of_tile) return;
  const char* const base = reinterpret_cast<const char*>(part);
  for (std::int64_t page = 0; page < numbers * 2; page += kPage) {
    for (std::int64_t at = page; at < page + kBytes; at += Prefetcher::kLine)
      __builtin_prefetch(base + at, 0, 2);  // into the L2
  }
}

// ---- one block: S and dP, then P and dS ----

template <int kTerms>
TILEWISE_INLINE GradientBlock gradient_block(const KeyPanelBounds& bounds, std::int64_t group,
                                             const AmxBackwardScratch& scratch) {
  constexpr std::int64_t kPairs = kTerms * kLowPairs;
  constexpr std::int64_t kTileWords = kTerms * kTileElements / 2;
  const float* const exponents = kTerms == 2 ? scratch.lse : scratch.exponents;
  float* const scores = scratch.blocks + group % 2 * 2 * kBlockQueries * kAmxWidth;
  return {scores,
          scores + kBlockQueries * kAmxWidth,
          exponents + group * kBlockQueries,
          scratch.delta + group * kBlockQueries,
          scratch.prob_pairs + group * kPairs,
          scratch.gradient_pairs + group * kPairs,
          scratch.gradient_rows + (group * 2 * scratch.panels + bounds.panel) * kTileWords,
          scratch.panels * kTileWords};
}

// Starts P and dS of a group, whose S and dP are in memory.
template <class Slices>
TILEWISE_INLINE void begin_gradients(const HeadContext& context, const AmxQueryTile& tile,
                                     const KeyPanelBounds& bounds, std::int64_t group,
                                     const AmxBackwardScratch& scratch, Slices& slices) {
  constexpr int kTerms = Slices::kTerms;
  const GradientBlock block = gradient_block<kTerms>(bounds, group, scratch);
  const std::int64_t row = tile.first + group * kBlockQueries;
  const TileBounds at = {bounds.lane0, bounds.lanes, row, math::min(kBlockQueries, tile.end - row)};
  if (scratch.fast_path[group] && bounds.lanes == kAmxWidth &&
      classify(context, Lanes::kKeys, at) == TileClass::kFull) {
    slices.begin(block);
    return;
  }
  GradientScratch<float> general = scratch.fallback.gradient;
  general.lse = scratch.lse + group * kBlockQueries;
  general.delta = scratch.delta + group * kBlockQueries;
  masked_block_gradients<kTerms>(context, at, block, kTerms == 2 && tile.non_finite[group] != 0,
                                 general);
}

// Rows of Q times keys, or rows of dO times values, in steps of 32 columns.
struct RowProduct {
  const std::uint16_t* rows;
  const std::uint32_t* pairs;
  std::int64_t steps;

  TILEWISE_INLINE TileOperands operands(std::int64_t t) const {
    return {rows + t * kTileElements, rows + (steps + t) * kTileElements,
            pairs + t * kTileRows * kAmxWidth, kAmxStride};
  }
  TILEWISE_INLINE TermDistance low() const {
    return {steps * 2 * kTileElements, steps * kTileRows * kAmxWidth};
  }
};

// The rest of a product after begin_block().
template <TermProducts kProducts, class Slices>
TILEWISE_INLINE void add_steps(const RowProduct& product, Slices& slices) {
  add_other_terms<kProducts>(product.operands(0), product.low(), slices);
#pragma GCC unroll 3
  for (std::int64_t t = 1; t < product.steps; ++t)
    add_terms<kProducts>(product.operands(t), product.low(), slices);
}

// S = Q K^T and dP = dO V^T of every group, and P and dS of all groups but the last. Returns the
// address of the last group's dP, which is still in the tile registers.
template <class Slices>
TILEWISE_INLINE float* score_groups(const HeadContext& context, const AmxQueryTile& tile,
                                    const KeyPanelBounds& bounds, const AmxBackwardScratch& scratch,
                                    Slices& slices) {
  constexpr int kTerms = Slices::kTerms;
  constexpr TermProducts kProducts = kExactProducts<kTerms>;
  const std::int64_t of_q = kTerms * kBlockQueries * scratch.head_dim;
  const std::int64_t of_dout = kTerms * kBlockQueries * scratch.value_dim;
  RowProduct scores = {nullptr,
                       scratch.k_pairs + bounds.panel * kTerms * scratch.head_dim / 2 * kAmxWidth,
                       scratch.head_dim / kTileDepth};
  RowProduct dprobs = {nullptr,
                       scratch.v_pairs + bounds.panel * kTerms * scratch.value_dim / 2 * kAmxWidth,
                       scratch.value_dim / kTileDepth};
  float* pending = nullptr;
  for (std::int64_t group = bounds.first_group; group < bounds.end_group; ++group) {
    scores.rows = tile.q_rows + group * of_q;
    dprobs.rows = tile.dout_rows + group * of_dout;
    prefetch_first_lines(bounds, scores.rows + of_q, of_q);
    prefetch_first_lines(bounds, dprobs.rows + of_dout, of_dout);
    begin_block(scores.operands(0), nullptr, pending, kAmxStride, slices);
    slices.drain();
    if (group > bounds.first_group)
      begin_gradients(context, tile, bounds, group - 1, scratch, slices);
    add_steps<kProducts>(scores, slices);
    const GradientBlock block = gradient_block<kTerms>(bounds, group, scratch);
    begin_block(dprobs.operands(0), nullptr, block.scores, kAmxStride, slices);
    add_steps<kProducts>(dprobs, slices);
    pending = block.dprobs;
  }
  return pending;
}

// ---- dV and dK ----

// sums += columns * pairs over the groups of a tile, for 32 rows of the sums at a time.
template <int kTerms>
struct ColumnProduct {
  static constexpr TermProducts kProducts = kNearProducts<kTerms>;

  const std::uint16_t* columns;  // dO^T or Q^T of the tile
  std::int64_t rows;             // of the sums
  const std::uint32_t* pairs;
  float* sums;

  TILEWISE_INLINE TileOperands operands(std::int64_t group, std::int64_t row) const {
    const std::uint16_t* const top = columns + (group * kTerms * rows + row) * kBlockQueries;
    return {top, top + kTileElements, pairs + group * kTerms * kLowPairs, kAmxStride};
  }
  TILEWISE_INLINE TermDistance low() const { return {rows * kBlockQueries, kLowPairs}; }
  // Returns the address of the block of sums.
  template <class Slices>
  TILEWISE_INLINE float* begin(const KeyPanelBounds& bounds, std::int64_t row, float* pending,
                               Slices& slices) const {
    float* const to = sums + row * kAmxWidth;
    begin_block(first_operands<kProducts>(operands(bounds.first_group, row), low()),
                bounds.first_visit ? nullptr : to, pending, kAmxStride, slices);
    return to;
  }
  template <class Slices>
  TILEWISE_INLINE void continue_first(const KeyPanelBounds& bounds, std::int64_t row,
                                      Slices& slices) const {
    add_other_terms<kProducts>(operands(bounds.first_group, row), low(), slices);
  }
  template <class Slices>
  TILEWISE_INLINE void add(std::int64_t group, std::int64_t row, Slices& slices) const {
    add_terms<kProducts>(operands(group, row), low(), slices);
  }
};

// The product over all groups of the panel's bounds, from `row` on. Returns the address of the last
// rows, which are still in the tile registers.
template <int kTerms>
TILEWISE_INLINE float* add_columns(const KeyPanelBounds& bounds,
                                   const ColumnProduct<kTerms>& product, std::int64_t row,
                                   float* pending) {
  NoSlices none;
  for (; row < product.rows; row += 32) {
    pending = product.begin(bounds, row, pending, none);
    product.continue_first(bounds, row, none);
#pragma GCC unroll 4
    for (std::int64_t group = bounds.first_group + 1; group < bounds.end_group; ++group) {
      const std::uint16_t* const next = product.operands(group + 1, row).top;
      for (int term = 0; term < kTerms && group + 1 < bounds.end_group; ++term)
        prefetch_first_lines(bounds, next + term * product.low().left, 2 * kTileElements);
      product.add(group, row, none);
    }
  }
  return pending;
}

// The first 32 rows of dV, overlapped with P and dS of the last group. `pending` is the address of
// that group's dP.
template <class Slices>
TILEWISE_INLINE float* begin_columns(const HeadContext& context, const AmxQueryTile& tile,
                                     const KeyPanelBounds& bounds,
                                     const ColumnProduct<Slices::kTerms>& product, float* pending,
                                     const AmxBackwardScratch& scratch, Slices& slices) {
  const std::int64_t last = bounds.end_group - 1;
  float* const to = product.begin(bounds, 0, pending, slices);
  slices.drain();
  begin_gradients(context, tile, bounds, last, scratch, slices);
  product.continue_first(bounds, 0, slices);
  for (std::int64_t group = bounds.first_group + 1; group < last; ++group)
    product.add(group, 0, slices);
  slices.drain();
  product.add(last, 0, slices);
  return to;
}

// A panel of keys and a tile of queries: the panel's part of dV and dK, and dS for dQ.
//
// kPlan: chosen so that the 16 pairs of queries of a block end with its products
template <SlicePlan kPlan>
__attribute__((noinline)) void amx_backward_tile(const HeadContext& context,
                                                 const AmxQueryTile& tile,
                                                 const KeyPanelBounds& bounds,
                                                 const AmxBackwardScratch& scratch) {
  const Problem& problem = *context.problem;
  constexpr int kTerms = kPlan.terms;
  const ColumnProduct<kTerms> dv = {
      tile.dout_columns, scratch.value_dim, scratch.prob_pairs,
      scratch.dv_panels + bounds.panel * scratch.value_dim * kAmxWidth};
  const ColumnProduct<kTerms> dk = {
      tile.q_columns, scratch.head_dim, scratch.gradient_pairs,
      scratch.dk_panels + bounds.panel * scratch.head_dim * kAmxWidth};
  GradientSlices<kPlan> slices(ScoreScaling<float>(problem).scale_log2());
  float* pending = score_groups(context, tile, bounds, scratch, slices);
  // With few groups, 32 rows of dV do not have enough products to overlap with.
  constexpr std::int64_t kFew = kTerms == 2 ? 4 : 8;
  std::int64_t done = 0;
  if (problem.dv.present() && bounds.end_group - bounds.first_group >= kFew) {
    pending = begin_columns(context, tile, bounds, dv, pending, scratch, slices);
    done = 32;
  } else {
    store_block(pending, kAmxStride);
    pending = nullptr;
    slices.drain();
    begin_gradients(context, tile, bounds, bounds.end_group - 1, scratch, slices);
    slices.drain();
  }
  if (problem.dv.present()) pending = add_columns(bounds, dv, done, pending);
  if (problem.dk.present()) pending = add_columns(bounds, dk, 0, pending);
  if (pending != nullptr) store_block(pending, kAmxStride);
}

// ---- dQ ----

// Prefetches after every step of a product.
class PrefetchSlices {
 public:
  TILEWISE_INLINE explicit PrefetchSlices(const Prefetcher& prefetcher) : prefetcher_(prefetcher) {}
  template <int kProduct>
  TILEWISE_INLINE void slice() {
    if constexpr (kProduct == 3) prefetcher_.step();
  }

 private:
  Prefetcher prefetcher_;
};

// sums += dS K of one group, over the panels that it sees. Keys stream as right operands; dS of the
// group stays in the L1 for all columns. Returns the address of the last columns, which are still
// in the tile registers.
//
// stride: bytes of a row of the sums; slices: overlapped with the products
template <int kTerms>
TILEWISE_INLINE float* add_group_to_dq(std::int64_t group, const KeyPanelBounds* panels,
                                       std::int64_t count, float* sums, std::int64_t stride,
                                       float* pending, PrefetchSlices slices,
                                       const AmxBackwardScratch& scratch) {
  const std::uint16_t* const rows = reinterpret_cast<const std::uint16_t*>(scratch.gradient_rows) +
                                    group * 2 * kTerms * scratch.panels * kTileElements;
  constexpr TermProducts kProducts = kNearProducts<kTerms>;
  const TermDistance low = {kTileElements, scratch.head_dim * kTileRows};
  for (std::int64_t column = 0; column < scratch.head_dim; column += 32) {
    bool begun = false;
    for (std::int64_t p = 0; p < count; ++p) {
      const KeyPanelBounds& bounds = panels[p];
      if (group < bounds.first_group || group >= bounds.end_group) continue;
      const std::uint16_t* const top = rows + bounds.panel * kTerms * kTileElements;
      const TileOperands operands = {
          top, top + scratch.panels * kTerms * kTileElements,
          scratch.key_words + (bounds.panel * kTerms * scratch.head_dim + column) * kTileRows,
          kAmxStride};
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
TILEWISE_INLINE void add_tile_to_dq(const HeadContext& context, const AmxQueryTile& tile,
                                    const KeyPanelBounds* panels, std::int64_t count,
                                    const QueryGradient<float>& gradient,
                                    const AmxBackwardScratch& scratch) {
  const std::int64_t stride = gradient.row * 4;
  float* pending = nullptr;
  std::int64_t row = tile.first;
  for (; row + kBlockQueries <= context.sequence.q_len && row < tile.end; row += kBlockQueries) {
    float* const sums = gradient.at(context, row);
    // The sums of the next group are not in the L2.
    Prefetcher prefetcher(sums + kBlockQueries * gradient.row, 1, kBlockQueries * stride, 0);
    prefetcher.spread_over(count * scratch.head_dim / 32);
    pending = add_group_to_dq<kTerms>((row - tile.first) / kBlockQueries, panels, count, sums,
                                      stride, pending, PrefetchSlices(prefetcher), scratch);
  }
  if (pending != nullptr) store_block(pending, stride);
  if (row >= tile.end) return;
  // Fewer than 32 rows are left, and the next rows belong to another sequence. The sums start from
  // what is stored, as above, so that the number of panels that are added together does not change
  // a bit.
  float* const sums = gradient.at(context, row);
  const std::int64_t count_left = (context.sequence.q_len - row) * gradient.row;
  for (std::int64_t i = 0; i < kBlockQueries * gradient.row; ++i)
    scratch.last_rows[i] = i < count_left ? sums[i] : 0;
  pending =
      add_group_to_dq<kTerms>((row - tile.first) / kBlockQueries, panels, count, scratch.last_rows,
                              stride, nullptr, PrefetchSlices({}), scratch);
  if (pending != nullptr) store_block(pending, stride);
  for (std::int64_t i = 0; i < count_left; ++i) sums[i] = scratch.last_rows[i];
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AMX
