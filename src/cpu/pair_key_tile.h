// The five products of the backward pass in bf16 pairs: a panel of 32 keys meets a tile of 512
// queries in blocks of 32 queries: scores and dP, and under the products of the next block P and
// dS, in slices (pair_gradient.h). Then dV and dK are one product each over all the tile's queries,
// and once all panels have been there, dQ is one over all their keys.
#pragma once

#include "cpu/pair_backward_operands.h"

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
  const std::int64_t pages = divide_up(numbers * 2, kPage);
  Ahead(part, pages, kLines * Ahead::kLine, kPage).ask(kLines * static_cast<int>(pages));
}

// ---- one block: S, dP and what becomes of them ----

TILEWISE_INLINE GradientBlock gradient_block(const PanelFrame& frame, std::int64_t group,
                                             const PairKeyScratch& scratch) {
  constexpr std::int64_t kPairs = kBlockQueries / 2 * kPairWidth;
  constexpr std::int64_t kTileWords = kTileElements / 2;
  float* const scores = scratch.blocks + group % 2 * 2 * kBlockQueries * kPairWidth;
  return {scores,
          scores + kBlockQueries * kPairWidth,
          scratch.exponents + group * kBlockQueries,
          scratch.delta + group * kBlockQueries,
          scratch.prob_pairs + group * kPairs,
          scratch.gradient_pairs + group * kPairs,
          scratch.gradient_rows + (group * 2 * scratch.panels + frame.panel) * kTileWords,
          scratch.panels * kTileWords};
}

// S and dP of the group are in memory.
template <int kPairs>
TILEWISE_INLINE void begin_gradients(const HeadContext& context, const PairQueryTile& tile,
                                     const PanelFrame& frame, std::int64_t group,
                                     const PairKeyScratch& scratch,
                                     GradientSlices<kPairs>& slices) {
  const GradientBlock block = gradient_block(frame, group, scratch);
  const std::int64_t row = tile.first + group * kBlockQueries;
  const Frame at = {frame.lane0, frame.lanes, row, math::lesser(kBlockQueries, tile.end - row)};
  if (scratch.usual[group] && frame.lanes == kPairWidth &&
      classify(context, Lanes::kKeys, at) == TileClass::kFull) {
    slices.begin(block);
    return;
  }
  GradientScratch<float> general = scratch.plain.gradient;
  general.lse = scratch.lse + group * kBlockQueries;
  general.delta = scratch.delta + group * kBlockQueries;
  finish_gradients(context, at, block, general);
}

template <class Slices>
TILEWISE_INLINE void add_steps(const std::uint16_t* top, std::int64_t steps,
                               const std::uint32_t* pairs, Slices& slices) {
#pragma GCC unroll 3
  for (std::int64_t t = 1; t < steps; ++t) {
    add_step({top + t * kTileElements, top + (steps + t) * kTileElements,
              pairs + t * kTileRows * kPairWidth, kPairStride},
             slices);
  }
}

// S = Q K^T and dP = dO V^T of every group, and P and dS of all but the last. Returns where the
// last one's dP, still in the tile registers, belongs.
template <int kPairs>
TILEWISE_INLINE float* score_groups(const HeadContext& context, const PairQueryTile& tile,
                                    const PanelFrame& frame, const PairKeyScratch& scratch,
                                    GradientSlices<kPairs>& slices) {
  const std::int64_t steps = scratch.head_dim / kTileDepth;
  const std::int64_t value_steps = scratch.value_dim / kTileDepth;
  const std::uint32_t* const k = scratch.k_pairs + frame.panel * scratch.head_dim / 2 * kPairWidth;
  const std::uint32_t* const v = scratch.v_pairs + frame.panel * scratch.value_dim / 2 * kPairWidth;
  float* pending = nullptr;
  for (std::int64_t group = frame.first_group; group < frame.end_group; ++group) {
    const std::int64_t of_q = kBlockQueries * scratch.head_dim;
    const std::int64_t of_dout = kBlockQueries * scratch.value_dim;
    const std::uint16_t* const q = tile.q_rows + group * of_q;
    const std::uint16_t* const dout = tile.dout_rows + group * of_dout;
    ask_for_part(frame, q + of_q, of_q);
    ask_for_part(frame, dout + of_dout, of_dout);
    begin_block({q, q + steps * kTileElements, k, kPairStride}, nullptr, pending, kPairStride,
                slices);
    slices.rest();
    if (group > frame.first_group)
      begin_gradients(context, tile, frame, group - 1, scratch, slices);
    add_steps(q, steps, k, slices);
    const GradientBlock block = gradient_block(frame, group, scratch);
    begin_block({dout, dout + value_steps * kTileElements, v, kPairStride}, nullptr, block.scores,
                kPairStride, slices);
    add_steps(dout, value_steps, v, slices);
    pending = block.dprobs;
  }
  return pending;
}

// ---- dV and dK ----

// sums += columns * pairs, over all groups of the frame, 32 rows of the sums at a time.  columns:
// dO^T or Q^T of the tile, `rows` of them
// Returns where the last rows, still in the tile registers, belong.
TILEWISE_INLINE float* add_columns(const PanelFrame& frame, const std::uint16_t* columns,
                                   std::int64_t rows, const std::uint32_t* pairs, std::int64_t row,
                                   float* sums, float* pending) {
  NoSlices none;
  for (; row < rows; row += 32) {
    const auto operands = [&](std::int64_t group) {
      const std::uint16_t* const top = columns + (group * rows + row) * kBlockQueries;
      return TileOperands{top, top + kTileElements, pairs + group * kBlockQueries / 2 * kPairWidth,
                          kPairStride};
    };
    float* const to = sums + row * kPairWidth;
    begin_block(operands(frame.first_group), frame.first_visit ? nullptr : to, pending, kPairStride,
                none);
#pragma GCC unroll 4
    for (std::int64_t group = frame.first_group + 1; group < frame.end_group; ++group) {
      if (group + 1 < frame.end_group)
        ask_for_part(frame, operands(group + 1).top, 2 * kTileElements);
      add_step(operands(group), none);
    }
    pending = to;
  }
  return pending;
}

// The first 32 rows of dV, with the last group's P and dS under them: `pending` says where its dP
// belongs.
template <int kPairs>
TILEWISE_INLINE float* begin_columns(const HeadContext& context, const PairQueryTile& tile,
                                     const PanelFrame& frame, float* pending,
                                     const PairKeyScratch& scratch,
                                     GradientSlices<kPairs>& slices) {
  const std::int64_t last = frame.end_group - 1;
  const auto operands = [&](std::int64_t group) {
    const std::uint16_t* const top = tile.dout_columns + group * scratch.value_dim * kBlockQueries;
    return TileOperands{top, top + kTileElements,
                        scratch.prob_pairs + group * kBlockQueries / 2 * kPairWidth, kPairStride};
  };
  float* const to = scratch.dv_panels + frame.panel * scratch.value_dim * kPairWidth;
  begin_block(operands(frame.first_group), frame.first_visit ? nullptr : to, pending, kPairStride,
              slices);
  slices.rest();
  begin_gradients(context, tile, frame, last, scratch, slices);
  for (std::int64_t group = frame.first_group + 1; group < last; ++group)
    add_step(operands(group), slices);
  slices.rest();
  add_step(operands(last), slices);
  return to;
}

// A panel of keys meets a tile of queries: its part of dV and dK, and dS for dQ.
// kPairs: of queries for two products, so that the 16 of a block end with its products
template <int kPairs>
__attribute__((noinline)) void pair_key_tile(const HeadContext& context, const PairQueryTile& tile,
                                             const PanelFrame& frame,
                                             const PairKeyScratch& scratch) {
  const Problem& problem = *context.problem;
  GradientSlices<kPairs> slices(ScoreUnits<float>(problem).exponent().factor);
  float* pending = score_groups(context, tile, frame, scratch, slices);
  // With few groups, there are not enough products in 32 rows of dV.
  constexpr std::int64_t kFew = 8;
  std::int64_t done = 0;
  if (problem.dv.present() && frame.end_group - frame.first_group >= kFew) {
    pending = begin_columns(context, tile, frame, pending, scratch, slices);
    done = 32;
  } else {
    store_block(pending, kPairStride);
    pending = nullptr;
    slices.rest();
    begin_gradients(context, tile, frame, frame.end_group - 1, scratch, slices);
    slices.rest();
  }
  if (problem.dv.present()) {
    pending =
        add_columns(frame, tile.dout_columns, scratch.value_dim, scratch.prob_pairs, done,
                    scratch.dv_panels + frame.panel * scratch.value_dim * kPairWidth, pending);
  }
  if (problem.dk.present()) {
    pending = add_columns(frame, tile.q_columns, scratch.head_dim, scratch.gradient_pairs, 0,
                          scratch.dk_panels + frame.panel * scratch.head_dim * kPairWidth, pending);
  }
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
// the products Returns where the last columns, still in the tile registers, belong.
TILEWISE_INLINE float* add_group_to_dq(std::int64_t group, const PanelFrame* frames,
                                       std::int64_t count, float* sums, std::int64_t stride,
                                       float* pending, AheadSlices slices,
                                       const PairKeyScratch& scratch) {
  const std::uint16_t* const rows = reinterpret_cast<const std::uint16_t*>(scratch.gradient_rows) +
                                    group * 2 * scratch.panels * kTileElements;
  for (std::int64_t column = 0; column < scratch.head_dim; column += 32) {
    bool begun = false;
    for (std::int64_t p = 0; p < count; ++p) {
      const PanelFrame& frame = frames[p];
      if (group < frame.first_group || group >= frame.end_group) continue;
      const std::uint16_t* const top = rows + frame.panel * kTileElements;
      const TileOperands operands = {
          top, top + scratch.panels * kTileElements,
          scratch.key_words + (frame.panel * scratch.head_dim + column) * kTileRows, kPairStride};
      if (begun) {
        add_step<Streamed::kRight>(operands, slices);
      } else {
        begin_block<Streamed::kRight>(operands, sums + column, pending, stride, slices);
      }
      begun = true;
    }
    if (begun) pending = sums + column;
  }
  return pending;
}

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
    pending = add_group_to_dq((row - tile.first) / kBlockQueries, frames, count, sums, stride,
                              pending, AheadSlices(ahead), scratch);
  }
  if (pending != nullptr) store_block(pending, stride);
  if (row >= tile.end) return;
  // Fewer than 32 rows: the next ones are another sequence's. Sums go on from where they are, as
  // above: how many panels go together must not show.
  float* const sums = gradient.at(context, row);
  const std::int64_t count_left = (context.sequence.q_len - row) * gradient.row;
  for (std::int64_t i = 0; i < kBlockQueries * gradient.row; ++i)
    scratch.rest[i] = i < count_left ? sums[i] : 0;
  pending = add_group_to_dq((row - tile.first) / kBlockQueries, frames, count, scratch.rest, stride,
                            nullptr, AheadSlices({}), scratch);
  if (pending != nullptr) store_block(pending, stride);
  for (std::int64_t i = 0; i < count_left; ++i) sums[i] = scratch.rest[i];
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_TILES
