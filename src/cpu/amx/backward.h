// The backward pass of bf16 and fp16 on AMX: the sweep over keys of backward/main_loop.h, with its
// five products as tile products of bf16 and fp32 sums (backward_tile.h).
//
// The tile products take every row for every key. Keys that are not finite enter them as zeros as
// long as no query sees them. Otherwise the block is computed by backward/main_loop.h, as are dK
// and dV (again) if they turn out not to be finite.
#pragma once

#include "cpu/amx/backward_tile.h"
#include "cpu/amx/dot.h"
#include "math/integer.h"

#if TILEWISE_HAS_AMX

namespace tilewise::cpu::TILEWISE_TARGET {

// Loads LSE and delta of the tile's rows, from group `group` on.
template <int kTerms>
TILEWISE_INLINE void load_tile_statistics(const HeadContext& context, const AmxQueryTile& tile,
                                          std::int64_t group, const View& delta,
                                          const AmxBackwardScratch& scratch) {
  const ScoreScaling<float> scaling(*context.problem);
  const Vec<float> scale_log2 = scaling.scale_log2().factor;
  const Vec<float> shift(math::log2(kProbScale));
  // The product of LSE and scale_log2 is rounded, and then off by at most 2^-12, in all
  // probabilities of a row. With two terms it is not rounded.
  const float infinity = math::Limits<float>::kInfinity;
  const Vec<float> most(kTerms == 2 ? infinity : 0x1p12f);
  const auto below = [](Vec<float> x, Vec<float> limit) {
    return _mm512_cmp_ps_mask(_mm512_abs_ps(__m512(x.v)), __m512(limit.v), _CMP_LT_OQ) == 0xFFFF;
  };
  const std::int64_t begin = group * kBlockQueries;
  GradientScratch<float> statistics = scratch.fallback.gradient;
  statistics.lse = scratch.lse + begin;
  statistics.delta = scratch.delta + begin;
  const std::int64_t count = tile.end - tile.first - begin;
  load_row_statistics(context, {delta, 1.0f, 1.0f}, tile.first + begin, count,
                      math::round_up(count, kBlockQueries), statistics);
  for (; group * kBlockQueries < tile.end - tile.first; ++group) {
    std::int64_t at = group * kBlockQueries;
    bool fast_path = scaling.unscaled && context.problem->dropout_p == 0 &&
                     tile.first + at + kBlockQueries <= tile.end &&
                     (kTerms == 1 || tile.non_finite[group] == 0);
    for (const std::int64_t end = at + kBlockQueries; at < end; at += Vec<float>::kLanes) {
      const Vec<float> product = Vec<float>::load(scratch.lse + at) * scale_log2;
      fast_path = fast_path && below(product, most) &&
                  below(Vec<float>::load(scratch.delta + at), Vec<float>(infinity));
      (product + shift).store(scratch.exponents + at);
    }
    scratch.fast_path[group] = fast_path;
  }
}

// The context of a panel of keys and a tile of queries.
TILEWISE_INLINE HeadContext tile_context(const HeadContext& context, const AmxQueryTile& tile,
                                         const KeyPanelBounds& bounds,
                                         const AmxBackwardScratch& scratch) {
  return narrowed(context, {tile.first, tile.end}, {bounds.lane0, bounds.lane0 + bounds.lanes},
                  scratch.fallback.gradient.bands);
}

// Finds the panels of the block that rows of the tile see. Returns their number.
TILEWISE_INLINE std::int64_t panels_of_tile(const HeadContext& context, const KeyBlock& block,
                                            const AmxQueryTile& tile, KeyPanelBounds* panels,
                                            const AmxBackwardScratch& scratch) {
  std::int64_t count = 0;
  for (std::int64_t panel = 0; panel * kAmxWidth < block.keys; ++panel) {
    KeyPanelBounds bounds;
    bounds.panel = panel;
    bounds.first_visit = scratch.visited[panel] == 0;
    bounds.lane0 = block.first + panel * kAmxWidth;
    bounds.lanes = math::min(kAmxWidth, block.keys - panel * kAmxWidth);
    const math::KeyRange own =
        rows_of_keys(tile_context(context, tile, bounds, scratch), bounds.lane0, bounds.lanes);
    bounds.first_group = math::max(own.begin - tile.first, 0) / kBlockQueries;
    bounds.end_group = math::ceil_div(math::min(own.end, tile.end) - tile.first, kBlockQueries);
    if (own.end <= tile.first || bounds.first_group >= bounds.end_group) continue;
    if (boolean_mask_hides(context, {tile.first, tile.end},
                           {bounds.lane0, bounds.lane0 + bounds.lanes}))
      continue;
    panels[count++] = bounds;
  }
  return count;
}

// The kernel for a number of columns in the products of S and dP.
template <int kTerms>
TILEWISE_INLINE auto amx_backward_tile_for(std::int64_t columns) {
  if constexpr (kTerms == 2) {
    return columns >= 256   ? amx_backward_tile<SlicePlan{1, 8, 2, true}>
           : columns >= 128 ? amx_backward_tile<SlicePlan{1, 4, 2, true}>
                            : amx_backward_tile<SlicePlan{1, 2, 2, true}>;
  } else {
    return columns >= 256   ? amx_backward_tile<SlicePlan{1, 2, 1, false}>
           : columns >= 128 ? amx_backward_tile<SlicePlan{1, 1, 1, false}>
                            : amx_backward_tile<SlicePlan{2, 1, 1, false}>;
  }
}

template <int kTerms>
TILEWISE_INLINE void amx_visit_tile(const HeadContext& context, const KeyBlock& block,
                                    const AmxQueryTile& tile, const KeyPass<float>& pass,
                                    std::int64_t position, const AmxBackwardScratch& scratch) {
  KeyPanelBounds panels[kMostAmxKeyPanels<kTerms>];
  const std::int64_t count = panels_of_tile(context, block, tile, panels, scratch);
  std::int64_t first_group = kTileGroups<kTerms>;
  for (std::int64_t p = 0; p < count; ++p)
    first_group = math::min(first_group, panels[p].first_group);
  if (count > 0) load_tile_statistics<kTerms>(context, tile, first_group, pass.delta, scratch);
  const auto run_tile = amx_backward_tile_for<kTerms>(scratch.head_dim + scratch.value_dim);
  for (std::int64_t p = 0; p < count; ++p) {
    panels[p].first_of_tile = p == 0;
    run_tile(tile_context(context, tile, panels[p], scratch), tile, panels[p], scratch);
    scratch.visited[panels[p].panel] = 1;
  }
  if (!pass.adds_to_dq()) return;
  block.order.wait(position);
  if (count > 0) add_tile_to_dq<kTerms>(context, tile, panels, count, pass.query_gradient, scratch);
  block.order.arrive(position);
}

template <int kTerms>
TILEWISE_INLINE void amx_visit_queries(const RunContext& run, const KeyBlock& block,
                                       const KeyPass<float>& pass, const PackedQueries& packed,
                                       const AmxBackwardScratch& scratch) {
  const Problem& problem = *block.problem;
  constexpr std::int64_t kQueries = kAmxQueries<kTerms>;
  constexpr int kCopies = 2 * kTerms;  // rows and columns
  const std::int64_t bytes = (problem.head_dim + problem.value_dim) * 2 * kCopies;
  const std::int64_t dq_bytes = pass.adds_to_dq() ? pass.query_gradient.row * 4 : 0;
  // Positions are counted in the tiles of backward/main_loop.h, which may compute the block before
  // this one.
  const std::int64_t positions = math::ceil_div(block.sequence.q_len, kGradientTile);
  for (std::int64_t g = 0; g < problem.group; ++g) {
    const HeadContext context = block.context(g, scratch.fallback.gradient.bands);
    const math::KeyRange rows = rows_of_keys(context, block.first, block.keys);
    const auto next_range = [&](std::int64_t begin) {
      return next_visible_rows(context, {block.first, block.first + block.keys}, {begin, rows.end},
                               kQueries);
    };
    for (math::KeyRange seen = next_range(rows.begin); seen.begin < seen.end;
         seen = next_range(math::round_up(seen.end, kQueries))) {
      const std::int64_t first = seen.begin / kQueries * kQueries;
      const std::int64_t end = seen.end;
      const std::int64_t group = packed.group_at(context, first);
      const std::int64_t at = group * kBlockQueries * kTerms;
      const AmxQueryTile tile = {first,
                                 end,
                                 packed.q_rows + at * scratch.head_dim,
                                 packed.q_columns + at * scratch.head_dim,
                                 packed.dout_rows + at * scratch.value_dim,
                                 packed.dout_columns + at * scratch.value_dim,
                                 packed.non_finite + group};
      amx_visit_tile<kTerms>(context, block, tile, pass, g * positions + (end - 1) / kGradientTile,
                             scratch);
      count_traffic(run, (end - seen.begin) * (bytes + dq_bytes), (end - seen.begin) * dq_bytes);
    }
  }
  if (pass.adds_to_dq()) {
    block.order.wait(problem.group * positions - 1);
    block.order.arrive(problem.group * positions - 1);
  }
}

// Packs K and V of the block.
template <int kTerms>
TILEWISE_INLINE void amx_load_keys(const KeyBlock& block, const AmxBackwardScratch& scratch) {
  const Problem& problem = *block.problem;
  for (std::int64_t panel = 0; panel * kAmxWidth < block.keys; ++panel) {
    const std::int64_t row = block.sequence.k_start + block.first + panel * kAmxWidth;
    const std::int64_t lanes = math::min(kAmxWidth, block.keys - panel * kAmxWidth);
    const RowBlock k = {&problem.k, block.sequence.batch, block.kv_head, row,
                        lanes,      problem.head_dim};
    const RowBlock v = {&problem.v, block.sequence.batch, block.kv_head, row,
                        lanes,      problem.value_dim};
    const std::uint8_t* const non_finite = scratch.non_finite_keys + panel * kAmxWidth;
    for_each_term<kTerms>([&](auto term, int number) {
      constexpr Term kTerm = decltype(term)::value;
      const std::int64_t at = (panel * kTerms + number) * kAmxWidth / 2;
      pack_bf16_pairs<kAmxWidth, kTerm>(k, ScoreScaling<float>(problem).sign < 0, non_finite,
                                        scratch.k_pairs + at * scratch.head_dim);
      pack_bf16_pairs<kAmxWidth, kTerm>(v, false, non_finite,
                                        scratch.v_pairs + at * scratch.value_dim);
      pack_key_words<kTerm>(k, non_finite, scratch.key_words + at * scratch.head_dim);
    });
  }
  for (std::int64_t panel = 0; panel < scratch.panels; ++panel) scratch.visited[panel] = 0;
}

// Sets dK and dV of the panels that no query sees to zero.
TILEWISE_INLINE void clear_unvisited_panels(const AmxBackwardScratch& scratch) {
  for (std::int64_t panel = 0; panel < scratch.panels; ++panel) {
    if (scratch.visited[panel] != 0) continue;
    float* const dk = scratch.dk_panels + panel * scratch.head_dim * kAmxWidth;
    float* const dv = scratch.dv_panels + panel * scratch.value_dim * kAmxWidth;
    for (std::int64_t i = 0; i < scratch.head_dim * kAmxWidth; ++i) dk[i] = 0;
    for (std::int64_t i = 0; i < scratch.value_dim * kAmxWidth; ++i) dv[i] = 0;
  }
}

// Returns true if a query sees a key of the panel that is flagged as not finite.
__attribute__((noinline)) inline bool non_finite_key_is_seen(const KeyBlock& block,
                                                             std::int64_t panel,
                                                             const std::uint8_t* non_finite,
                                                             const AmxBackwardScratch& scratch) {
  const Problem& problem = *block.problem;
  const GradientScratch<float>& general = scratch.fallback.gradient;
  float* const scores = scratch.blocks;
  const std::int64_t lane0 = block.first + panel * kAmxWidth;
  const std::int64_t lanes = math::min(kAmxWidth, block.keys - panel * kAmxWidth);
  for (std::int64_t g = 0; g < problem.group; ++g) {
    const HeadContext head = block.context(g, general.bands);
    const math::KeyRange rows = rows_of_keys(head, lane0, lanes);
    for (std::int64_t row = rows.begin; row < rows.end; row += kBlockQueries) {
      const TileBounds bounds = {lane0, lanes, row, math::min(kBlockQueries, rows.end - row)};
      const HeadContext context = narrowed(head, rows_of(Lanes::kKeys, bounds),
                                           keys_of(Lanes::kKeys, bounds), general.bands);
      const TileClass tile_class = classify(context, Lanes::kKeys, bounds);
      if (tile_class == TileClass::kEmpty) continue;
      for (std::int64_t i = 0; i < bounds.t_count * kAmxWidth; ++i) scores[i] = 0;
      apply_score_mod<float, Lanes::kKeys, kAmxWidth>(context, bounds, tile_class, general.mask,
                                                      scores, general.tile.record);
      for (std::int64_t i = 0; i < bounds.t_count * kAmxWidth; ++i) {
        if (i % kAmxWidth < lanes && non_finite[i % kAmxWidth] != 0 &&
            scores[i] != -math::Limits<float>::kInfinity)
          return true;
      }
    }
  }
  return false;
}

// Flags the keys that are not finite. Returns false if a query sees one of them.
template <int kTerms>
TILEWISE_INLINE bool flag_non_finite_keys(const KeyBlock& block,
                                          const AmxBackwardScratch& scratch) {
  const Problem& problem = *block.problem;
  const std::int64_t row = block.sequence.k_start + block.first;
  const std::int64_t of_values = scratch.panels * kAmxWidth;
  const bool non_finite_k = flag_non_finite_rows<kTerms>(
      {&problem.k, block.sequence.batch, block.kv_head, row, block.keys, problem.head_dim},
      scratch.non_finite_keys);
  const bool non_finite_v = flag_non_finite_rows<kTerms>(
      {&problem.v, block.sequence.batch, block.kv_head, row, block.keys, problem.value_dim},
      scratch.non_finite_keys + of_values);
  if (!non_finite_k && !non_finite_v) return true;
  for (std::int64_t i = 0; i < block.keys; ++i)
    scratch.non_finite_keys[i] |= scratch.non_finite_keys[of_values + i];
  for (std::int64_t panel = 0; panel * kAmxWidth < block.keys; ++panel) {
    if (non_finite_key_is_seen(block, panel, scratch.non_finite_keys + panel * kAmxWidth, scratch))
      return false;
  }
  return true;
}

// Calls function(rows of the gradient, scale, panel of sums) for dK and dV of every panel.
template <class Function>
TILEWISE_INLINE void for_each_gradient(const KeyBlock& block, const AmxBackwardScratch& scratch,
                                       Function run_item) {
  const Problem& problem = *block.problem;
  for (std::int64_t panel = 0; panel * kAmxWidth < block.keys; ++panel) {
    const std::int64_t row = block.sequence.k_start + block.first + panel * kAmxWidth;
    const std::int64_t lanes = math::min(kAmxWidth, block.keys - panel * kAmxWidth);
    run_item(
        RowBlock{&problem.dk, block.sequence.batch, block.kv_head, row, lanes, problem.head_dim},
        static_cast<float>(problem.scale),
        scratch.dk_panels + panel * scratch.head_dim * kAmxWidth);
    run_item(
        RowBlock{&problem.dv, block.sequence.batch, block.kv_head, row, lanes, problem.value_dim},
        1.0f, scratch.dv_panels + panel * scratch.value_dim * kAmxWidth);
  }
}

// Prefetches rows that are stored next, while their sums are checked.
TILEWISE_INLINE void prefetch_rows(const RowBlock& rows) {
  const std::int64_t size = problem::dtype_size(rows.view->dtype);
  const char* const base = static_cast<const char*>(rows.view->data) +
                           rows.view->offset(rows.batch, rows.head, rows.first) * size;
  for (std::int64_t r = 0; r < rows.count; ++r)
    prefetch_row(base, r * rows.view->row * size, rows.width * size);
}

// Stores dK and dV of the block, or adds them with `accumulate`. Returns false if they are not
// finite; they will then be computed and stored again, so that nothing may be added before all of
// them are known to be finite.
TILEWISE_INLINE bool store_amx_gradients(const KeyBlock& block, const AmxBackwardScratch& scratch) {
  const bool adds = block.problem->accumulate;
  bool finite = true;
  const auto check = [&](const RowBlock& rows, const float* sums) {
    prefetch_rows(rows);
    finite = finite && all_finite<float, kAmxWidth>(sums, rows.width, rows.count);
  };
  if (adds) {
    for_each_gradient(block, scratch, [&](const RowBlock& rows, float, const float* sums) {
      if (rows.view->present()) check(rows, sums);
    });
    if (!finite) return false;
  }
  for_each_gradient(block, scratch, [&](const RowBlock& rows, float scale, const float* sums) {
    if (!rows.view->present()) return;
    if (!adds) check(rows, sums);
    float factor[kAmxWidth];
    for (int lane = 0; lane < kAmxWidth; ++lane) factor[lane] = scale;
    if (adds) {
      add_panel<float, kAmxWidth>(rows, factor, sums);
    } else {
      unpack_panel<float, kAmxWidth>(rows, factor, sums);
    }
  });
  return finite;
}

// Computes the block by tile products. Returns false if dK or dV are not finite.
template <int kTerms>
TILEWISE_INLINE bool amx_key_block(const RunContext& run, const KeyBlock& block,
                                   const KeyPass<float>& pass, const PackedQueries& packed,
                                   const AmxBackwardScratch& scratch) {
  amx_load_keys<kTerms>(block, scratch);
  const unsigned mode = _mm_getcsr();  // see amx_forward_block()
  _mm_setcsr(mode | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
  configure_tiles();
  amx_visit_queries<kTerms>(run, block, pass, packed, scratch);
  release_tiles();
  _mm_setcsr(mode);
  clear_unvisited_panels(scratch);
  const Problem& problem = *block.problem;
  if (!store_amx_gradients(block, scratch)) return false;
  const std::int64_t stored = block.keys * (row_bytes(problem.dk, problem.head_dim) +
                                            row_bytes(problem.dv, problem.value_dim));
  count_traffic(
      run,
      block.keys * (problem.head_dim + problem.value_dim) * 2 + (problem.accumulate ? stored : 0),
      stored);
  return true;
}

// The policy of AMX for backward/run.h: how a worker computes a block of keys.
//
// kTerms: 1 for bf16, 2 for fp16
template <int kTerms>
struct AmxBackward {
  using Scratch = AmxBackwardScratch;
  using Packed = PackedQueries;
  static constexpr int kPackedCopies = 2 * kTerms;  // rows and columns
  static constexpr bool kHasUnits = false;          // tile products flush denormals
  static constexpr std::int64_t kMostPanels = kMostAmxKeyPanels<kTerms>;

  static Packed take_packed(const Problem& problem, Arena& arena) {
    return needs_key_sweep(problem) ? take_packed_queries<kTerms>(problem, arena) : Packed{};
  }
  static void pack(const HeadContext& context, std::int64_t first, std::int64_t count,
                   const Packed& packed) {
    pack_queries<kTerms>(context, first, count, packed);
  }
  static Scratch take(const Problem& problem, std::int64_t panels, Arena& arena) {
    return take_amx_backward_scratch<kTerms>(problem, panels, arena);
  }
  // The inner product of a row of dO and one of O.
  template <class Dout, class Out>
  static float inner_product(const Dout* dout, const Out* out, std::int64_t width) {
    using Half = std::conditional_t<kTerms == 1, math::BFloat16, math::Float16>;
    if constexpr (std::is_same_v<Dout, Half> && std::is_same_v<Out, Half>) {
      return amx_inner_product<kTerms>(reinterpret_cast<const std::uint16_t*>(dout),
                                       reinterpret_cast<const std::uint16_t*>(out), width);
    } else {
      return cpu::TILEWISE_TARGET::inner_product<float>(out, dout, width);
    }
  }
  static void run(const RunContext& context, const KeyBlock& block, KeyPass<float> pass,
                  const Packed& packed, const Scratch& scratch) {
    const bool seen = is_seen(block, scratch.fallback.gradient.bands);
    if (!seen) return key_block<float, kPanelRegisters>(context, block, pass, scratch.fallback);
    if (flag_non_finite_keys<kTerms>(block, scratch)) {
      if (amx_key_block<kTerms>(context, block, pass, packed, scratch)) return;
      pass.dq_is_added = true;
    }
    count_contained_step(context);
    key_block<float, kPanelRegisters>(context, block, pass, scratch.fallback);
  }
};

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AMX
