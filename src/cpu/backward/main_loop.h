// The main loop of the backward pass: FlashAttention-2 (Dao 2023, algorithm 2), one block of keys
// at a time. A block of keys of one kv head visits all queries that see it, of all query heads of
// the group (GQA), in order. It owns its dK and dV, and adds its part of dQ.
#pragma once

#include "cpu/backward/query_gradient.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

template <class E>
struct KeyScratch {
  using T = SumOf<E>;
  E* k_panels;                    // (panels, operand_count(D), kWidth), with the sign of the scale
  E* v_panels;                    // (panels, operand_count(Dv), kWidth)
  T* dk_panels;                   // (panels, D rounded up to kGemmRows, kWidth)
  T* dv_panels;                   // (panels, Dv rounded up to kGemmRows, kWidth)
  E* key_rows;                    // (operand_count(panels * kWidth), padded D), for dQ
  std::uint8_t* non_finite_keys;  // (panels * kWidth): 1 where K is not finite
  E* gradient_rows;  // (kGradientTile, operand_count(panels * kWidth)): dS; only pairs of bf16 need
                     // it
  GradientScratch<E> gradient;
  std::int64_t panels;
};

// Numbers of a panel of dK (or dV).
template <int kWidth>
TILEWISE_INLINE std::int64_t gradient_panel(std::int64_t width) {
  return math::round_up(width, kGemmRows) * kWidth;
}

template <class E, int kWidth>
KeyScratch<E> take_key_scratch(const Problem& problem, std::int64_t panels, Arena& arena) {
  using T = SumOf<E>;
  KeyScratch<E> scratch;
  scratch.panels = panels;
  scratch.k_panels = arena.take<E>(panels * operand_count<E>(problem.head_dim) * kWidth);
  scratch.v_panels = arena.take<E>(panels * operand_count<E>(problem.value_dim) * kWidth);
  scratch.dk_panels = arena.take<T>(panels * gradient_panel<kWidth>(problem.head_dim));
  scratch.dv_panels = arena.take<T>(panels * gradient_panel<kWidth>(problem.value_dim));
  const std::int64_t keys = problem.dq.present() ? operand_count<E>(panels * kWidth) : 0;
  scratch.key_rows = arena.take<E>(keys * padded_head_dim<T>(problem));
  scratch.non_finite_keys = arena.take<std::uint8_t>(keys > 0 ? panels * kWidth : 0);
  scratch.gradient_rows = arena.take<E>(Operand<E>::kNumbers > 1 ? kGradientTile * keys : 0);
  scratch.gradient = take_gradient_scratch<E, kWidth>(problem, arena);
  return scratch;
}

struct KeyBlock {
  const Problem* problem;
  Sequence sequence;
  std::int64_t kv_head;
  std::int64_t first;
  std::int64_t keys;
  OrderBarrier order;
  const BandIndex* bands;  // of slices

  TILEWISE_INLINE bool is_far() const { return sequence.k_len >= kFarRows; }
  TILEWISE_INLINE HeadContext context(std::int64_t head_of_group, Band* room) const {
    return head_context(*problem, sequence, kv_head * problem->group + head_of_group, *bands, room);
  }
};

// One pass of a block of keys over the queries. A second pass computes only dK and dV again,
// because dQ has been added.
template <class T>
struct KeyPass {
  bool dq_is_added;
  bool keys_are_finite;  // of the block
  View delta;
  QueryGradient<T> query_gradient;
  const RunContext* run;

  TILEWISE_INLINE bool adds_to_dq() const { return query_gradient.sums != nullptr && !dq_is_added; }
};

// A tile of queries: rows of Q and dO, and the same as packed columns.
template <class E>
struct QueryTile {
  Rows<E> q;                      // (rows, D)
  Rows<E> dout;                   // (rows, Dv)
  PackedColumns<E> q_columns;     // if dK is wanted
  PackedColumns<E> dout_columns;  // if dV is wanted
  Prefetcher prefetcher[2];       // the next rows of Q and dO
  const GradientUnits<SumOf<E>>* units;
};

TILEWISE_INLINE RowBlock query_rows(const HeadContext& context, const View& view,
                                    math::KeyRange rows, std::int64_t width) {
  return {&view,
          context.sequence.batch,
          context.head,
          context.sequence.q_start + rows.begin,
          math::max(rows.end - rows.begin, 0),
          width};
}

// Rows as an operand of S or dP. Pairs of bf16 have no unit.
template <class E>
Rows<E> stage_operand(const RowBlock& rows, SumOf<E> unit, E* stage) {
  if constexpr (Operand<E>::kNumbers > 1) {
    return stage_rows<E>(rows, stage);
  } else {
    return stage_scaled_rows<E>(rows, unit, stage);
  }
}

template <class E>
QueryTile<E> load_query_tile(const HeadContext& context, math::KeyRange rows, math::KeyRange next,
                             const GradientUnits<SumOf<E>>& units,
                             const GradientScratch<E>& scratch) {
  const Problem& problem = *context.problem;
  const RowBlock q = query_rows(context, problem.q, rows, problem.head_dim);
  const RowBlock dout = query_rows(context, problem.dout, rows, problem.value_dim);
  QueryTile<E> tile;
  tile.units = &units;
  tile.q = stage_operand<E>(q, units.q_rows, scratch.stage_a);
  tile.dout = stage_operand<E>(dout, units.dout_rows, scratch.stage_b);
  tile.prefetcher[0] = prefetcher_of(query_rows(context, problem.q, next, problem.head_dim));
  tile.prefetcher[1] = prefetcher_of(query_rows(context, problem.dout, next, problem.value_dim));
  tile.q_columns = tile.dout_columns = {};
  if (problem.dk.present()) tile.q_columns = pack_columns<E>(q, units.q_columns, scratch.packed_a);
  if (problem.dv.present())
    tile.dout_columns = pack_columns<E>(dout, units.dout_columns, scratch.packed_b);
  return tile;
}

// The panels [begin, end) of a block.
struct PanelRange {
  std::int64_t begin;
  std::int64_t end;
};

// fp32 and fp64 add dQ panel by panel, in key_tile(). With pairs of bf16, dS of all panels is
// stored as rows (avx512_bf16/backward.h), and one product takes neighbouring panels together: for
// the 24 words of one panel the sums of dQ would be loaded and stored for every 24 products.
//
// rows: of the tile; keys: of the block
template <class E, int kMost, int kColumns>
void store_gradient_rows(const HeadContext&, const TileBounds&, math::KeyRange, std::int64_t,
                         const KeyPass<SumOf<E>>&, const KeyScratch<E>&) {
  static_assert(Operand<E>::kNumbers == 1, "pairs have a form of their own");
}
template <class E, int kWidth>
void add_gradient_rows_to_dq(const HeadContext&, math::KeyRange, PanelRange, std::int64_t,
                             const KeyPass<SumOf<E>>&, const KeyScratch<E>&) {
  static_assert(Operand<E>::kNumbers == 1, "pairs have a form of their own");
}

// One step of the main loop: a panel of keys and a part of the tile of queries whose rows are
// `whole`. The five products are S, dP, dV, dK and dQ. Registers that hold no key of the panel are
// left out of the products.
template <class E, int kMost, int kColumns>
void key_tile(const HeadContext& context, const TileBounds& bounds, TileClass tile_class,
              QueryTile<E>& rows, math::KeyRange whole, std::int64_t panel,
              const KeyPass<SumOf<E>>& pass, const KeyScratch<E>& scratch) {
  using T = SumOf<E>;
  const std::int64_t skipped = bounds.t0 - whole.begin;
  constexpr int kWidth = kMost * Vec<T>::kLanes;
  const Problem& problem = *context.problem;
  const std::int64_t at_d = panel * operand_count<E>(problem.head_dim) * kWidth;
  const std::int64_t at_v = panel * operand_count<E>(problem.value_dim) * kWidth;
  const GradientOperands<E> given = {
      {rows.q.data + skipped * rows.q.stride, rows.q.stride},
      {rows.dout.data + skipped * rows.dout.stride, rows.dout.stride},
      scratch.k_panels + at_d,
      scratch.v_panels + at_v,
      rows.prefetcher,
      rows.units,
      rows.q_columns.all_finite() && rows.dout_columns.all_finite() && pass.keys_are_finite};
  const GradientTile<T>& tile = scratch.gradient.tile;
  const ActiveRegisters<kColumns> active =
      find_active<T, Lanes::kKeys, kColumns>(context, bounds, tile_class);
  const TileSight<T> sight = recompute_tile<E, Lanes::kKeys, kColumns, kWidth>(
      context, bounds, tile_class, active, given, scratch.gradient);
  if (!sight.seen_whole) count_contained_step(*pass.run);
  apply_score_derivatives<T, Lanes::kKeys, kWidth>(context, bounds, *rows.units, tile);
  Vec<T> one[kColumns];
  for (int n = 0; n < kColumns; ++n) one[n] = Vec<T>(T(1));
  if (pass.adds_to_dq())
    store_gradient_rows<E, kMost, kColumns>(context, bounds, whole, panel, pass, scratch);
  if (problem.dv.present()) {
    accumulate<E, kColumns, kWidth>(
        rows.dout_columns, skipped, bounds.t_count, active,
        as_operands<E, kColumns, kWidth>(bounds.t_count, tile.probs), one, sight,
        scratch.dv_panels + panel * gradient_panel<kWidth>(problem.value_dim));
  }
  if (problem.dk.present()) {
    accumulate<E, kColumns, kWidth>(
        rows.q_columns, skipped, bounds.t_count, active,
        as_operands<E, kColumns, kWidth>(bounds.t_count, tile.gradients), one, sight,
        scratch.dk_panels + panel * gradient_panel<kWidth>(problem.head_dim));
  }
  if (!pass.adds_to_dq()) return;
  if constexpr (Operand<E>::kNumbers == 1) {
    const T* const key_rows = scratch.key_rows + panel * kWidth * pass.query_gradient.row;
    add_query_gradient<T, kMost>(context, bounds, active, key_rows, scratch.gradient,
                                 pass.query_gradient);
  }
  if (pass.keys_are_finite) return;
  add_non_finite_keys<T, kWidth>(context, bounds, tile.gradients,
                                 scratch.non_finite_keys + panel * kWidth, pass.query_gradient,
                                 sight);
}

// All panels of a block and one tile of queries. Each panel computes only the rows that see it; the
// others are masked in all its lanes. `next` is the range of rows after the tile.
template <class E, int kColumns>
void visit_query_tile(const HeadContext& context, const KeyBlock& block, math::KeyRange rows,
                      math::KeyRange next, const KeyPass<SumOf<E>>& pass,
                      const KeyScratch<E>& scratch) {
  constexpr int kWidth = kColumns * Vec<E>::kLanes;
  QueryTile<E> tile =
      load_query_tile(context, rows, next, pass.query_gradient.units_of(context), scratch.gradient);
  for (Prefetcher& prefetcher : tile.prefetcher)
    prefetcher.spread_over(math::ceil_div(block.keys, kWidth) *
                           math::ceil_div(rows.end - rows.begin, kGemmRows));
  PanelRange visited = {0, 0};
  for (std::int64_t panel = 0; panel * kWidth < block.keys; ++panel) {
    const std::int64_t lane0 = block.first + panel * kWidth;
    const std::int64_t lanes = math::min(kWidth, block.keys - panel * kWidth);
    const HeadContext own_context =
        narrowed(context, rows, {lane0, lane0 + lanes}, scratch.gradient.bands);
    const math::KeyRange own = rows_of_keys(own_context, lane0, lanes);
    const std::int64_t t0 = align_to_operand<E>(math::max(own.begin, rows.begin));
    const TileBounds bounds = {lane0, lanes, t0, math::min(own.end, rows.end) - t0};
    if (bounds.t_count <= 0) continue;
    const TileClass tile_class = classify_masked(own_context, Lanes::kKeys, bounds);
    if (tile_class == TileClass::kEmpty) continue;
    load_row_statistics(context, {pass.delta, tile.units->v_of_delta(), tile.units->dout_rows},
                        bounds.t0, bounds.t_count, bounds.t_count, scratch.gradient);
    with_columns<E, kColumns>(lanes, [&](auto columns) {
      key_tile<E, kColumns, decltype(columns)::kCount>(own_context, bounds, tile_class, tile, rows,
                                                       panel, pass, scratch);
    });
    if (visited.end != panel) {
      add_gradient_rows_to_dq<E, kWidth>(context, rows, visited, block.keys, pass, scratch);
      visited.begin = panel;
    }
    visited.end = panel + 1;
  }
  add_gradient_rows_to_dq<E, kWidth>(context, rows, visited, block.keys, pass, scratch);
}

template <class E, int kColumns>
void visit_queries(const RunContext& run, const KeyBlock& block, const KeyPass<SumOf<E>>& pass,
                   const KeyScratch<E>& scratch) {
  using T = SumOf<E>;
  const Problem& problem = *block.problem;
  const std::int64_t bytes =
      row_bytes(problem.q, problem.head_dim) + row_bytes(problem.dout, problem.value_dim);
  const std::int64_t dq_bytes =
      pass.adds_to_dq() ? pass.query_gradient.row * static_cast<std::int64_t>(sizeof(T)) : 0;
  const std::int64_t tiles = math::ceil_div(block.sequence.q_len, kGradientTile);
  for (std::int64_t g = 0; g < problem.group; ++g) {
    const HeadContext context = block.context(g, scratch.gradient.bands);
    const math::KeyRange rows = rows_of_keys(context, block.first, block.keys);
    const auto next_range = [&](std::int64_t begin) {
      return next_visible_rows(context, {block.first, block.first + block.keys}, {begin, rows.end},
                               kGradientTile);
    };
    math::KeyRange next = next_range(rows.begin);
    while (next.begin < next.end) {
      const math::KeyRange seen = next;
      const math::KeyRange own = {align_to_operand<E>(seen.begin), seen.end};
      const std::int64_t position = g * tiles + seen.begin / kGradientTile;
      if (pass.adds_to_dq()) block.order.wait(position);
      next = next_range(math::round_up(seen.end, kGradientTile));
      if (!boolean_mask_hides(context, own, {block.first, block.first + block.keys}))
        visit_query_tile<E, kColumns>(context, block, own, next, pass, scratch);
      if (pass.adds_to_dq()) block.order.arrive(position);
      count_traffic(run, (seen.end - seen.begin) * (bytes + dq_bytes),
                    (seen.end - seen.begin) * dq_bytes);
    }
  }
  if (pass.adds_to_dq()) {
    block.order.wait(problem.group * tiles - 1);
    block.order.arrive(problem.group * tiles - 1);
  }
}

// Returns whether any query sees a key of the block. K and V of other blocks are not read.
//
// bands: room for max_bands(problem)
inline bool is_seen(const KeyBlock& block, Band* bands) {
  for (std::int64_t g = 0; g < block.problem->group; ++g) {
    const math::KeyRange rows = rows_of_keys(block.context(g, bands), block.first, block.keys);
    if (rows.begin < rows.end) return true;
  }
  return false;
}

template <class E, int kWidth>
void clear_key_gradients(const KeyBlock& block, const KeyScratch<E>& scratch) {
  using T = SumOf<E>;
  const std::int64_t panels = math::ceil_div(block.keys, kWidth);
  const std::int64_t dk = panels * gradient_panel<kWidth>(block.problem->head_dim);
  const std::int64_t dv = panels * gradient_panel<kWidth>(block.problem->value_dim);
  for (std::int64_t i = 0; i < dk; ++i) scratch.dk_panels[i] = T(0);
  for (std::int64_t i = 0; i < dv; ++i) scratch.dv_panels[i] = T(0);
}

template <class E, int kWidth>
void load_keys(const KeyBlock& block, const GradientUnits<SumOf<E>>& units,
               const KeyScratch<E>& scratch) {
  using T = SumOf<E>;
  const Problem& problem = *block.problem;
  for (std::int64_t panel = 0; panel * kWidth < block.keys; ++panel) {
    const std::int64_t row = block.sequence.k_start + block.first + panel * kWidth;
    const std::int64_t lanes = math::min(kWidth, block.keys - panel * kWidth);
    const std::int64_t at_d = panel * operand_count<E>(problem.head_dim) * kWidth;
    const std::int64_t at_v = panel * operand_count<E>(problem.value_dim) * kWidth;
    pack_panel<E, kWidth>(
        {&problem.k, block.sequence.batch, block.kv_head, row, lanes, problem.head_dim},
        ScoreScaling<T>(problem).sign * units.k_panel, scratch.k_panels + at_d);
    pack_panel<E, kWidth>(
        {&problem.v, block.sequence.batch, block.kv_head, row, lanes, problem.value_dim},
        units.v_panel, scratch.v_panels + at_v);
  }
}

// Stores a panel of dK or dV of a block, multiplied by a factor, or adds it with `accumulate`.
template <class T, int kWidth>
void store_gradient_panel(const KeyBlock& block, const RowBlock& rows,
                          const GradientFactor<T>& factor, T* panel) {
  if (!rows.view->present()) return;
  if (factor.first != T(1)) {
    for (std::int64_t i = 0; i < rows.width * kWidth; i += Vec<T>::kLanes)
      (Vec<T>::load(panel + i) * Vec<T>(factor.first)).store(panel + i);
  }
  T factors[kWidth];
  for (int lane = 0; lane < kWidth; ++lane) factors[lane] = factor.second;
  if (block.problem->accumulate) return add_panel<T, kWidth>(rows, factors, panel);
  unpack_panel<T, kWidth>(rows, factors, panel, block.is_far());
}

template <class E, int kWidth>
void store_key_gradients(const KeyBlock& block, const GradientUnits<SumOf<E>>& units,
                         const KeyScratch<E>& scratch) {
  using T = SumOf<E>;
  const Problem& problem = *block.problem;
  const GradientFactor<T> of_dk(problem.scale, units, units.q_columns);
  const GradientFactor<T> of_dv(1, units.dout_columns);
  for (std::int64_t panel = 0; panel * kWidth < block.keys; ++panel) {
    const std::int64_t row = block.sequence.k_start + block.first + panel * kWidth;
    const std::int64_t lanes = math::min(kWidth, block.keys - panel * kWidth);
    store_gradient_panel<T, kWidth>(
        block, {&problem.dk, block.sequence.batch, block.kv_head, row, lanes, problem.head_dim},
        of_dk, scratch.dk_panels + panel * gradient_panel<kWidth>(problem.head_dim));
    store_gradient_panel<T, kWidth>(
        block, {&problem.dv, block.sequence.batch, block.kv_head, row, lanes, problem.value_dim},
        of_dv, scratch.dv_panels + panel * gradient_panel<kWidth>(problem.value_dim));
  }
}

template <class E, int kColumns>
void key_block(const RunContext& run, const KeyBlock& block, KeyPass<SumOf<E>> pass,
               const KeyScratch<E>& scratch) {
  constexpr int kWidth = kColumns * Vec<E>::kLanes;
  const Problem& problem = *block.problem;
  const QueryGradient<SumOf<E>>& gradient = pass.query_gradient;
  const GradientUnits<SumOf<E>>& units =
      gradient.units[block.sequence.batch * problem.kv_heads + block.kv_head];
  const bool seen = is_seen(block, scratch.gradient.bands);
  if (seen && gradient.sums != nullptr) {
    KeyRows<E> rows = {scratch.key_rows, scratch.non_finite_keys, block.is_far(), true};
    load_key_rows<E>({&problem.k, block.sequence.batch, block.kv_head,
                      block.sequence.k_start + block.first, block.keys, problem.head_dim},
                     gradient.row, units.k_rows, rows);
    pass.keys_are_finite = rows.all_finite;
  }
  if (seen) load_keys<E, kWidth>(block, units, scratch);
  clear_key_gradients<E, kWidth>(block, scratch);
  visit_queries<E, kColumns>(run, block, pass, scratch);
  store_key_gradients<E, kWidth>(block, units, scratch);
  const std::int64_t stored = block.keys * (row_bytes(problem.dk, problem.head_dim) +
                                            row_bytes(problem.dv, problem.value_dim));
  count_traffic(run,
                (seen ? block.keys : 0) * (row_bytes(problem.k, problem.head_dim) +
                                           row_bytes(problem.v, problem.value_dim)) +
                    (problem.accumulate ? stored : 0),
                stored);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
