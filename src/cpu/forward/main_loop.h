// The main loop of the forward pass: FlashAttention-2 (Dao 2023, algorithm 1), with SIMD lanes =
// queries. Scores are computed as S^T = K Q^T and outputs as O^T = V^T P^T, so that the maximum,
// the sum and the rescaling of a row are lane-wise. K is read in place. Q is transposed and packed
// once for a block; V is packed for every tile.
#pragma once

#include "cpu/common/dropout.h"
#include "cpu/common/value_unit.h"
#include "cpu/forward/block.h"
#include "cpu/forward/finalise.h"
#include "cpu/forward/softmax.h"
#include "cpu/simd/dequantise.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// The rows of K and V of a tile of keys.
struct TileRows {
  RowBlock k;
  RowBlock v;
};
TILEWISE_INLINE TileRows tile_rows(const HeadContext& context, math::KeyRange keys) {
  const Problem& problem = *context.problem;
  const std::int64_t row = context.sequence.k_start + keys.begin;
  const std::int64_t count = math::max(keys.end - keys.begin, 0);
  const std::int64_t batch = context.sequence.batch;
  const std::int64_t head = context.kv_head();
  const PageTable* const pages = pages_of(problem);
  return {{&problem.k, batch, head, row, count, problem.head_dim, pages},
          {&problem.v, batch, head, row, count, problem.value_dim, pages}};
}

// A tile of keys in the form that the products read, and the prefetchers of the next tile.
template <class E>
struct KeyTile {
  Rows<E> k;                 // (keys, D)
  SumOf<E> k_unit;           // the power of two by which K is multiplied
  PackedColumns<E> v;        // (keys, Dv)
  SumOf<E> v_unit;           // the power of two by which V is multiplied; for pairs, its probs are
  Prefetcher prefetcher[2];  // K and V of the next tile, if there is one
  bool last;
  const RunContext* run;
};

// Packs V of a tile.
//
// v_unit: that of the tiles before it (0: none), and then that of this one
template <class E>
void load_values(const HeadContext& context, const RowBlock& values, SumOf<E>& v_unit,
                 const ForwardScratch<E>& scratch, KeyTile<E>& tile) {
  using T = SumOf<E>;
  const int room = value_room<T>(*context.problem, context.sequence.k_len);
  const auto largest = [&] {
    return tile.v.all_finite() ? tile.v.largest : largest_finite<T>(values);
  };
  if constexpr (Operand<E>::kNumbers > 1) {
    tile.v = pack_columns<E>(values, T(1), scratch.v_packed);
    v_unit = lowered_unit(v_unit, largest(), room);
  } else {
    const T guess = v_unit != T(0) ? v_unit : exact_power<T>(Exponents<T>::kLift);
    tile.v = pack_columns<E>(values, guess, scratch.v_packed);
    v_unit = value_unit(v_unit, largest(), room);
    if (v_unit != guess) tile.v = pack_columns<E>(values, v_unit, scratch.v_packed);
  }
  tile.v_unit = v_unit;
}

// Stages K of a tile, multiplied by a power of two if its numbers are small.
template <class E>
void load_scored_keys(const HeadContext& context, const RowBlock& keys,
                      const ForwardScratch<E>& scratch, KeyTile<E>& tile) {
  using T = SumOf<E>;
  tile.k = stage_rows<E>(keys, scratch.k_stage);
  tile.k_unit = T(1);
  if constexpr (Operand<E>::kNumbers == 1) {
    if (keys.view->dtype == TILEWISE_FP16) return;  // no product of two of them is denormal
    if (!scores_have_units(*context.problem)) return;
    // All keys of the grid's tile count, so that the unit does not depend on the block of queries.
    const std::int64_t first = keys.first - context.sequence.k_start;
    RowBlock whole = keys;
    whole.first -= first % kKeyTile;
    whole.count = math::min(kKeyTile, context.sequence.k_len - first + first % kKeyTile);
    tile.k_unit = unit_of_rows(measure_rows<T>(whole), keys.width);
    if (tile.k_unit == T(1)) return;
    tile.k = scale_rows<T>(tile.k, keys, tile.k_unit, scratch.k_stage);
  }
}

// The same for fp8: K and V are converted first, and are rows of floats from then on.
inline void load_fp8_tile(const HeadContext& context, const TileRows& rows, float& v_unit,
                          const ForwardScratch<float>& scratch, KeyTile<float>& tile) {
  const Problem& problem = *context.problem;
  const std::int64_t kv_head = context.kv_head();
  dequantise_rows(problem, rows.k, kv_head, rows.k.width, scratch.k_stage);
  tile.k = {scratch.k_stage, rows.k.width};
  tile.k_unit = 1;
  dequantise_rows(problem, rows.v, kv_head, rows.v.width, scratch.v_stage);
  const StagedView values(scratch.v_stage, rows.v);
  load_values<float>(context, values.rows(), v_unit, scratch, tile);
  tile.v.rows = rows.v;
}

// Loads the tile of `keys`, and prepares to prefetch that of the keys `following`.
template <class E>
KeyTile<E> load_key_tile(const HeadContext& context, math::KeyRange keys, math::KeyRange following,
                         SumOf<E>& v_unit, const ForwardScratch<E>& scratch) {
  const TileRows own = tile_rows(context, keys);
  const TileRows next = tile_rows(context, following);
  KeyTile<E> tile;
  bool loaded = false;
  if constexpr (kReadsFp8 && std::is_same_v<E, float>) {
    loaded = problem::is_fp8(context.problem->dtype);
    if (loaded) load_fp8_tile(context, own, v_unit, scratch, tile);
  }
  if (!loaded) {
    load_scored_keys<E>(context, own.k, scratch, tile);
    load_values<E>(context, own.v, v_unit, scratch, tile);
  }
  tile.prefetcher[0] = prefetcher_of(next.k);
  tile.prefetcher[1] = prefetcher_of(next.v);
  tile.last = next.k.count == 0;
  return tile;
}

// Brings the output of a panel so far to the unit of the tile, by way of its rescale factors.
template <class T, int kColumns>
void change_out_unit(T unit, T* out_unit, Vec<T>* rescale) {
  if (*out_unit == unit) return;
  // Before the first tile the output is 0.
  if (*out_unit == T(0)) *out_unit = unit;
  for (int n = 0; n < kColumns; ++n) rescale[n] = rescale[n] * Vec<T>(unit / *out_unit);
  *out_unit = unit;
}

// Multiplies the probs of a tile by a unit below 1.
template <class T, int kColumns, int kWidth>
void lower_probs(std::int64_t t_count, T unit, T* probs) {
  if (unit == T(1)) return;
  for (std::int64_t t = 0; t < t_count; ++t) {
    for (int n = 0; n < kColumns; ++n) {
      T* const at = probs + t * kWidth + n * Vec<T>::kLanes;
      (Vec<T>::load(at) * Vec<T>(unit)).store(at);
    }
  }
}

// One step of the main loop: a panel of queries and a tile of keys. Scores, mask, softmax, output.
// Registers that hold no query of the panel are left out of the products.
template <class E, int kMost, int kColumns>
void forward_tile(const HeadContext& context, const TileBounds& bounds, TileClass tile_class,
                  KeyTile<E>& tile, std::int64_t panel, const ForwardScratch<E>& scratch) {
  using T = SumOf<E>;
  constexpr int kWidth = kMost * Vec<T>::kLanes;
  const Problem& problem = *context.problem;
  const std::int64_t depth = operand_count<E>(problem.head_dim);
  const E* const q_panel = scratch.q_panels + panel * depth * kWidth;
  const std::int64_t skipped = context.sequence.k_start + bounds.t0 - tile.v.rows.first;
  const ActiveRegisters<kColumns> active =
      find_active<T, Lanes::kQueries, kColumns>(context, bounds, tile_class);
  gemm_masked<E, kColumns, kWidth>({tile.k.data + skipped * tile.k.stride, tile.k.stride},
                                   bounds.t_count, q_panel, depth, active, scratch.scores,
                                   &tile.prefetcher[0]);
  if constexpr (Operand<E>::kNumbers == 1) {
    divide_scores<T, kWidth>(bounds.t_count, tile.k_unit, scratch.score_unit[panel],
                             scratch.scores);
  }
  apply_score_mod<T, Lanes::kQueries, kWidth>(context, bounds, tile_class, scratch.mask,
                                              scratch.scores, {});
  TileSight<T> sight = {scratch.seen, true};
  if (!tile.v.all_finite()) {
    sight.seen_whole =
        record_seen<T, kWidth>(bounds.t_count, bounds.lane_count, scratch.scores, scratch.seen);
    if (!sight.seen_whole) count_contained_step(*tile.run);
  }
  Vec<T> rescale[kColumns];
  softmax_step<T, kColumns, kWidth>(bounds.t_count, ScoreScaling<T>(problem).scale_log2(),
                                    scratch.scores, scratch.max + panel * kWidth,
                                    scratch.sum + panel * kWidth, rescale);
  change_out_unit<T, kColumns>(tile.v_unit, scratch.out_unit + panel, rescale);
  if (problem.dropout_p > 0) {
    fill_dropout<T, Lanes::kQueries, kWidth>(
        context, bounds, kRoundsProbs<E> ? T(1) : dropout_scale<T>(problem), scratch.keep);
    apply_dropout<T, kWidth>(bounds, scratch.keep, scratch.scores);
  }
  if constexpr (Operand<E>::kNumbers > 1)
    lower_probs<T, kColumns, kWidth>(bounds.t_count, tile.v_unit, scratch.scores);
  accumulate<E, kColumns, kWidth>(tile.v, skipped, bounds.t_count, active,
                                  as_operands<E, kColumns, kWidth>(bounds.t_count, scratch.scores),
                                  rescale, sight, scratch.out_panels + panel * scratch.out_panel,
                                  &tile.prefetcher[1]);
}

// A panel and a range of keys: the bands that touch both, and the part of the range that the panel
// may see, aligned to an operand. If t_count <= 0 it sees none.
struct PanelTile {
  HeadContext context;
  TileBounds bounds;
};
template <class E, int kWidth>
TILEWISE_INLINE PanelTile panel_tile(const QueryBlock& block, std::int64_t panel,
                                     math::KeyRange keys, const ForwardScratch<E>& scratch) {
  const std::int64_t lane0 = block.first + panel * kWidth;
  const std::int64_t lanes = math::min(kWidth, block.rows - panel * kWidth);
  const HeadContext context = narrowed(block.context, {lane0, lane0 + lanes}, keys, scratch.bands);
  const math::KeyRange own = keys_of_rows(context, lane0, lanes);
  const std::int64_t t0 = align_to_operand<E>(math::max(own.begin, keys.begin));
  return {context, {lane0, lanes, t0, math::min(own.end, keys.end) - t0}};
}

// All panels of a block and one tile of keys.
template <class E, int kColumns>
void visit_key_tile(const QueryBlock& block, math::KeyRange keys, KeyTile<E>& tile,
                    const ForwardScratch<E>& scratch) {
  constexpr int kWidth = kColumns * Vec<E>::kLanes;
  const Problem& problem = *block.context.problem;
  std::int64_t visits = 0;
  for (std::int64_t panel = 0; panel * kWidth < block.rows; ++panel)
    visits += panel_tile<E, kWidth>(block, panel, keys, scratch).bounds.t_count > 0 ? 1 : 0;
  visits = math::max(visits, 1);
  tile.prefetcher[0].spread_over(visits * math::ceil_div(keys.end - keys.begin, kGemmRows));
  tile.prefetcher[1].spread_over(visits * math::ceil_div(problem.value_dim, kGemmRows));
  for (std::int64_t panel = 0; panel * kWidth < block.rows; ++panel) {
    const PanelTile own = panel_tile<E, kWidth>(block, panel, keys, scratch);
    const TileBounds& bounds = own.bounds;
    if (bounds.t_count <= 0) continue;
    const TileClass tile_class = classify_masked(own.context, Lanes::kQueries, bounds);
    if (tile_class == TileClass::kEmpty) continue;
    if (tile.last) {  // the outputs are stored next: prefetch their lines
      tile.prefetcher[0] =
          prefetcher_of(panel_rows(problem.out, block, panel, kWidth, problem.value_dim));
      tile.prefetcher[0].spread_over(math::ceil_div(bounds.t_count, kGemmRows));
    }
    with_columns<E, kColumns>(bounds.lane_count, [&](auto columns) {
      forward_tile<E, kColumns, decltype(columns)::kCount>(own.context, bounds, tile_class, tile,
                                                           panel, scratch);
    });
  }
}

// The loop of algorithm 1 over the tiles of keys, for all panels of a block. Tiles lie on a grid of
// the sequence, so that the result of a row does not depend on the block that it belongs to. Tiles
// that no row of the block sees are not read, and within a tile a panel computes only the keys that
// it may see.
template <class E, int kColumns>
void visit_keys(const RunContext& run, const QueryBlock& block, const ForwardScratch<E>& scratch) {
  const Problem& problem = *block.context.problem;
  const math::KeyRange keys = keys_of_block(block);
  const std::int64_t key_bytes = problem.head_dim * problem::dtype_size(problem.k.dtype) +
                                 problem.value_dim * problem::dtype_size(problem.v.dtype);
  SumOf<E> v_unit = Operand<E>::kNumbers > 1 ? SumOf<E>(1) : SumOf<E>(0);
  const auto next_range = [&](std::int64_t begin) {
    math::KeyRange range = next_visible_keys(block.context, {block.first, block.first + block.rows},
                                             {begin, keys.end}, kKeyTile);
    if (range.begin < range.end) range.begin = align_to_operand<E>(range.begin);
    return range;
  };
  math::KeyRange following = next_range(keys.begin);
  while (following.begin < following.end) {
    const math::KeyRange range = following;
    following = next_range(math::round_up(range.end, kKeyTile));
    if (boolean_mask_hides(block.context, {block.first, block.first + block.rows}, range)) continue;
    KeyTile<E> tile = load_key_tile(block.context, range, following, v_unit, scratch);
    tile.run = &run;
    count_traffic(run, (range.end - range.begin) * key_bytes, 0);
    visit_key_tile<E, kColumns>(block, range, tile, scratch);
  }
}

// Packs the rows of a panel of queries.
template <class E, int kWidth>
void load_panel(const Problem& problem, const RowBlock& rows, std::int64_t panel,
                const ForwardScratch<E>& scratch) {
  using T = SumOf<E>;
  T unit = T(1);
  if constexpr (Operand<E>::kNumbers == 1) {
    if (scores_have_units(problem)) unit = unit_of_rows(measure_rows<T>(rows), rows.width);
  }
  scratch.score_unit[panel] = unit;
  pack_panel<E, kWidth>(rows, ScoreScaling<T>(problem).sign * unit,
                        scratch.q_panels + panel * operand_count<E>(problem.head_dim) * kWidth);
}

template <class E, int kWidth>
void load_queries(const QueryBlock& block, const ForwardScratch<E>& scratch) {
  const Problem& problem = *block.context.problem;
  for (std::int64_t panel = 0; panel * kWidth < block.rows; ++panel) {
    const RowBlock rows = panel_rows(problem.q, block, panel, kWidth, problem.head_dim);
    bool loaded = false;
    if constexpr (kReadsFp8 && std::is_same_v<E, float>) {
      static_assert(kWidth <= kKeyTile, "a panel takes the place of a tile of K");
      loaded = problem::is_fp8(problem.q.dtype);
      if (loaded) {
        dequantise_rows(problem, rows, block.context.kv_head(), rows.width, scratch.k_stage);
        load_panel<E, kWidth>(problem, StagedView(scratch.k_stage, rows).rows(), panel, scratch);
      }
    }
    if (!loaded) load_panel<E, kWidth>(problem, rows, panel, scratch);
    start_state<E, kWidth>(panel, scratch);
    clear_output<E>(panel, scratch);
  }
}

// Computes the states of the rows of a block; they stay in the scratch.
template <class E, int kColumns>
void forward_block(const RunContext& run, const QueryBlock& block,
                   const ForwardScratch<E>& scratch) {
  constexpr int kWidth = kColumns * Vec<E>::kLanes;
  load_queries<E, kWidth>(block, scratch);
  visit_keys<E, kColumns>(run, block, scratch);
  count_query_traffic(run, block);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
