// The backward pass for bf16 and fp16 on the matrix unit: the sweep over keys of backward_keys.h,
// with its five products in bf16 pairs and fp32 sums (pair_key_tile.h).
//
// The unit's products take every row for every key. Keys that are not finite take part as zeros as
// long as no query sees one; else their block is computed by backward_keys.h, and so are, again, dK
// and dV that are not finite.
#pragma once

#include "cpu/pair_key_tile.h"
#include "math/integer.h"

#if TILEWISE_HAS_TILES

namespace tilewise::cpu::TILEWISE_TARGET {

// LSE and delta of the tile's rows from group `group` on.
template <int kTerms>
TILEWISE_INLINE void load_tile_statistics(const HeadContext& context, const PairQueryTile& tile,
                                          std::int64_t group, const View& delta,
                                          const PairKeyScratch& scratch) {
  const ScoreUnits<float> units(*context.problem);
  const Vec<float> unit = units.exponent().factor;
  const Vec<float> shift(math::log2(kUnitWeight));
  // Rounded, the product of LSE and unit is off by 2^-12 at most, in all probabilities of a row. In
  // two terms it is not rounded.
  const float infinity = math::Limits<float>::kInfinity;
  const Vec<float> most(kTerms == 2 ? infinity : 0x1p12f);
  const auto below = [](Vec<float> x, Vec<float> limit) {
    return _mm512_cmp_ps_mask(_mm512_abs_ps(__m512(x.v)), __m512(limit.v), _CMP_LT_OQ) == 0xFFFF;
  };
  const std::int64_t begin = group * kBlockQueries;
  GradientScratch<float> statistics = scratch.plain.gradient;
  statistics.lse = scratch.lse + begin;
  statistics.delta = scratch.delta + begin;
  const std::int64_t count = tile.end - tile.first - begin;
  load_row_statistics(context, delta, tile.first + begin, count,
                      math::round_up(count, kBlockQueries), statistics);
  for (; group * kBlockQueries < tile.end - tile.first; ++group) {
    std::int64_t at = group * kBlockQueries;
    bool usual = units.plain && context.problem->dropout_p == 0 &&
                 tile.first + at + kBlockQueries <= tile.end &&
                 (kTerms == 1 || tile.odd[group] == 0);
    for (const std::int64_t end = at + kBlockQueries; at < end; at += Vec<float>::kLanes) {
      const Vec<float> product = Vec<float>::load(scratch.lse + at) * unit;
      usual = usual && below(product, most) &&
              below(Vec<float>::load(scratch.delta + at), Vec<float>(infinity));
      (product + shift).store(scratch.exponents + at);
    }
    scratch.usual[group] = usual;
  }
}

// The panels of the block that rows of the tile see. Returns how many.
TILEWISE_INLINE std::int64_t panels_of_tile(const HeadContext& context, const KeyBlock& block,
                                            const PairQueryTile& tile, PanelFrame* frames,
                                            const PairKeyScratch& scratch) {
  std::int64_t count = 0;
  for (std::int64_t panel = 0; panel * kPairWidth < block.keys; ++panel) {
    PanelFrame frame;
    frame.panel = panel;
    frame.first_visit = scratch.visited[panel] == 0;
    frame.lane0 = block.first + panel * kPairWidth;
    frame.lanes = math::min(kPairWidth, block.keys - panel * kPairWidth);
    const math::KeyRange own = rows_of_keys(context, frame.lane0, frame.lanes);
    frame.first_group = math::max(own.begin - tile.first, 0) / kBlockQueries;
    frame.end_group = math::ceil_div(math::min(own.end, tile.end) - tile.first, kBlockQueries);
    if (own.end > tile.first && frame.first_group < frame.end_group) frames[count++] = frame;
  }
  return count;
}

// The kernel of a number of products in S and dP.
template <int kTerms>
TILEWISE_INLINE auto pair_key_tile_of(std::int64_t columns) {
  if constexpr (kTerms == 2) {
    return columns >= 256   ? pair_key_tile<SlicePlan{1, 8, 2, true}>
           : columns >= 128 ? pair_key_tile<SlicePlan{1, 4, 2, true}>
                            : pair_key_tile<SlicePlan{1, 2, 2, true}>;
  } else {
    return columns >= 256   ? pair_key_tile<SlicePlan{1, 2, 1, false}>
           : columns >= 128 ? pair_key_tile<SlicePlan{1, 1, 1, false}>
                            : pair_key_tile<SlicePlan{2, 1, 1, false}>;
  }
}

template <int kTerms>
TILEWISE_INLINE void visit_tile_in_pairs(const HeadContext& context, const KeyBlock& block,
                                         const PairQueryTile& tile, const KeyPass<float>& pass,
                                         std::int64_t position, const PairKeyScratch& scratch) {
  PanelFrame frames[kMostPairKeyPanels<kTerms>];
  const std::int64_t count = panels_of_tile(context, block, tile, frames, scratch);
  std::int64_t first_group = kTileGroups<kTerms>;
  for (std::int64_t p = 0; p < count; ++p)
    first_group = math::min(first_group, frames[p].first_group);
  if (count > 0) load_tile_statistics<kTerms>(context, tile, first_group, pass.delta, scratch);
  const auto meet = pair_key_tile_of<kTerms>(scratch.head_dim + scratch.value_dim);
  for (std::int64_t p = 0; p < count; ++p) {
    frames[p].first_of_tile = p == 0;
    meet(context, tile, frames[p], scratch);
    scratch.visited[frames[p].panel] = 1;
  }
  if (!pass.adds_to_dq()) return;
  block.turn.wait(position);
  if (count > 0) add_tile_to_dq<kTerms>(context, tile, frames, count, pass.query_gradient, scratch);
  block.turn.pass(position);
}

template <int kTerms>
TILEWISE_INLINE void visit_queries_in_pairs(const RunContext& run, const KeyBlock& block,
                                            const KeyPass<float>& pass, const PackedQueries& packed,
                                            const PairKeyScratch& scratch) {
  const Problem& problem = *block.problem;
  Band* const bands = scratch.plain.gradient.bands;
  constexpr std::int64_t kQueries = kPairQueries<kTerms>;
  constexpr int kCopies = 2 * kTerms;  // rows and columns
  const std::int64_t bytes = (problem.head_dim + problem.value_dim) * 2 * kCopies;
  const std::int64_t dq_bytes = pass.adds_to_dq() ? pass.query_gradient.row * 4 : 0;
  // Turns are counted in the tiles of backward_keys.h, which may compute the block before.
  const std::int64_t turns = math::ceil_div(block.sequence.q_len, kGradientTile);
  for (std::int64_t g = 0; g < problem.group; ++g) {
    HeadContext context = {&problem, block.sequence, block.kv_head * problem.group + g, bands, 0};
    context.band_count = problem::sequence_bands(problem, block.sequence, context.head, bands);
    const math::KeyRange rows = rows_of_keys(context, block.first, block.keys);
    for (std::int64_t first = rows.begin / kQueries * kQueries; first < rows.end;
         first += kQueries) {
      const std::int64_t end = math::min(first + kQueries, rows.end);
      const std::int64_t group = packed.group_at(context, first);
      const std::int64_t at = group * kBlockQueries * kTerms;
      const PairQueryTile tile = {first,
                                  end,
                                  packed.q_rows + at * scratch.head_dim,
                                  packed.q_columns + at * scratch.head_dim,
                                  packed.dout_rows + at * scratch.value_dim,
                                  packed.dout_columns + at * scratch.value_dim,
                                  packed.odd + group};
      visit_tile_in_pairs<kTerms>(context, block, tile, pass, g * turns + (end - 1) / kGradientTile,
                                  scratch);
      count_traffic(run, (end - math::max(first, rows.begin)) * (bytes + dq_bytes),
                    (end - math::max(first, rows.begin)) * dq_bytes);
    }
  }
  if (pass.adds_to_dq()) {
    block.turn.wait(problem.group * turns - 1);
    block.turn.pass(problem.group * turns - 1);
  }
}

// Packs K and V of the block.
template <int kTerms>
TILEWISE_INLINE void load_pair_keys(const KeyBlock& block, const PairKeyScratch& scratch) {
  const Problem& problem = *block.problem;
  for (std::int64_t panel = 0; panel * kPairWidth < block.keys; ++panel) {
    const std::int64_t row = block.sequence.k_start + block.first + panel * kPairWidth;
    const std::int64_t lanes = math::min(kPairWidth, block.keys - panel * kPairWidth);
    const RowBlock k = {&problem.k, block.sequence.batch, block.kv_head, row,
                        lanes,      problem.head_dim};
    const RowBlock v = {&problem.v, block.sequence.batch, block.kv_head, row,
                        lanes,      problem.value_dim};
    const std::uint8_t* const odd = scratch.odd_keys + panel * kPairWidth;
    for_each_term<kTerms>([&](auto term, int number) {
      constexpr Term kTerm = decltype(term)::value;
      const std::int64_t at = (panel * kTerms + number) * kPairWidth / 2;
      pack_pairs<kPairWidth, kTerm>(k, ScoreUnits<float>(problem).packed < 0, odd,
                                    scratch.k_pairs + at * scratch.head_dim);
      pack_pairs<kPairWidth, kTerm>(v, false, odd, scratch.v_pairs + at * scratch.value_dim);
      pack_key_words<kTerm>(k, odd, scratch.key_words + at * scratch.head_dim);
    });
  }
  for (std::int64_t panel = 0; panel < scratch.panels; ++panel) scratch.visited[panel] = 0;
}

// Panels that no query sees.
TILEWISE_INLINE void clear_unvisited_panels(const PairKeyScratch& scratch) {
  for (std::int64_t panel = 0; panel < scratch.panels; ++panel) {
    if (scratch.visited[panel] != 0) continue;
    float* const dk = scratch.dk_panels + panel * scratch.head_dim * kPairWidth;
    float* const dv = scratch.dv_panels + panel * scratch.value_dim * kPairWidth;
    for (std::int64_t i = 0; i < scratch.head_dim * kPairWidth; ++i) dk[i] = 0;
    for (std::int64_t i = 0; i < scratch.value_dim * kPairWidth; ++i) dv[i] = 0;
  }
}

// True if a query sees a key of the panel that `odd` marks.
__attribute__((noinline)) inline bool odd_key_is_seen(const KeyBlock& block, std::int64_t panel,
                                                      const std::uint8_t* odd,
                                                      const PairKeyScratch& scratch) {
  const Problem& problem = *block.problem;
  const GradientScratch<float>& general = scratch.plain.gradient;
  float* const scores = scratch.blocks;
  const std::int64_t lane0 = block.first + panel * kPairWidth;
  const std::int64_t lanes = math::min(kPairWidth, block.keys - panel * kPairWidth);
  for (std::int64_t g = 0; g < problem.group; ++g) {
    HeadContext context = {&problem, block.sequence, block.kv_head * problem.group + g,
                           general.bands, 0};
    context.band_count =
        problem::sequence_bands(problem, block.sequence, context.head, general.bands);
    const math::KeyRange rows = rows_of_keys(context, lane0, lanes);
    for (std::int64_t row = rows.begin; row < rows.end; row += kBlockQueries) {
      const Frame frame = {lane0, lanes, row, math::min(kBlockQueries, rows.end - row)};
      const TileClass tile_class = classify(context, Lanes::kKeys, frame);
      if (tile_class == TileClass::kEmpty) continue;
      for (std::int64_t i = 0; i < frame.t_count * kPairWidth; ++i) scores[i] = 0;
      finish_scores<float, Lanes::kKeys, kPairWidth>(context, frame, tile_class, general.mask,
                                                     scores, general.tile.derivative);
      for (std::int64_t i = 0; i < frame.t_count * kPairWidth; ++i) {
        if (i % kPairWidth < lanes && odd[i % kPairWidth] != 0 &&
            scores[i] != -math::Limits<float>::kInfinity)
          return true;
      }
    }
  }
  return false;
}

// Marks the keys that are not finite. False if a query sees one.
template <int kTerms>
TILEWISE_INLINE bool mark_odd_keys(const KeyBlock& block, const PairKeyScratch& scratch) {
  const Problem& problem = *block.problem;
  const std::int64_t row = block.sequence.k_start + block.first;
  const std::int64_t of_values = scratch.panels * kPairWidth;
  const bool odd_k = mark_odd_rows<kTerms>(
      {&problem.k, block.sequence.batch, block.kv_head, row, block.keys, problem.head_dim},
      scratch.odd_keys);
  const bool odd_v = mark_odd_rows<kTerms>(
      {&problem.v, block.sequence.batch, block.kv_head, row, block.keys, problem.value_dim},
      scratch.odd_keys + of_values);
  if (!odd_k && !odd_v) return true;
  for (std::int64_t i = 0; i < block.keys; ++i)
    scratch.odd_keys[i] |= scratch.odd_keys[of_values + i];
  for (std::int64_t panel = 0; panel * kPairWidth < block.keys; ++panel) {
    if (odd_key_is_seen(block, panel, scratch.odd_keys + panel * kPairWidth, scratch)) return false;
  }
  return true;
}

// Calls body(panel of sums, gradient, width, scale, rows) for dK and dV of every panel.
template <class Body>
TILEWISE_INLINE void for_each_gradient(const KeyBlock& block, const PairKeyScratch& scratch,
                                       Body body) {
  const Problem& problem = *block.problem;
  for (std::int64_t panel = 0; panel * kPairWidth < block.keys; ++panel) {
    const std::int64_t row = block.sequence.k_start + block.first + panel * kPairWidth;
    const std::int64_t lanes = math::min(kPairWidth, block.keys - panel * kPairWidth);
    body(RowBlock{&problem.dk, block.sequence.batch, block.kv_head, row, lanes, problem.head_dim},
         static_cast<float>(problem.scale),
         scratch.dk_panels + panel * scratch.head_dim * kPairWidth);
    body(RowBlock{&problem.dv, block.sequence.batch, block.kv_head, row, lanes, problem.value_dim},
         1.0f, scratch.dv_panels + panel * scratch.value_dim * kPairWidth);
  }
}

// Rows that will be stored: asked for while their sums are checked.
TILEWISE_INLINE void ask_for_rows(const RowBlock& rows) {
  const std::int64_t size = problem::dtype_size(rows.view->dtype);
  const char* const base = static_cast<const char*>(rows.view->data) +
                           rows.view->offset(rows.batch, rows.head, rows.first) * size;
  for (std::int64_t r = 0; r < rows.count; ++r)
    ask_for_row(base, r * rows.view->row * size, rows.width * size);
}

// The products of the block on the unit. False if dK or dV are not finite.
template <int kTerms>
TILEWISE_INLINE bool key_block_on_unit(const RunContext& run, const KeyBlock& block,
                                       const KeyPass<float>& pass, const PackedQueries& packed,
                                       const PairKeyScratch& scratch) {
  load_pair_keys<kTerms>(block, scratch);
  const unsigned mode = _mm_getcsr();  // see forward_block_in_pairs()
  _mm_setcsr(mode | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
  configure_tiles();
  visit_queries_in_pairs<kTerms>(run, block, pass, packed, scratch);
  release_tiles();
  _mm_setcsr(mode);
  clear_unvisited_panels(scratch);
  bool finite = true;
  for_each_gradient(block, scratch, [&](const RowBlock& rows, float scale, const float* sums) {
    if (!rows.view->present()) return;
    ask_for_rows(rows);
    finite = finite && all_finite<float, kPairWidth>(sums, rows.width, rows.count);
    float factor[kPairWidth];
    for (int lane = 0; lane < kPairWidth; ++lane) factor[lane] = scale;
    unpack_panel<float, kPairWidth>(rows, factor, sums);
  });
  if (!finite) return false;
  count_traffic(run, block.keys * (block.problem->head_dim + block.problem->value_dim) * 2,
                block.keys * (row_bytes(block.problem->dk, block.problem->head_dim) +
                              row_bytes(block.problem->dv, block.problem->value_dim)));
  return true;
}

// sum + the products of 32 numbers, in the order of the unit: those of even and those of odd number
// each in a sum of their own, and then both added to the whole. Products of bf16 are exact.
TILEWISE_INLINE float add_pair_products(__m512i left, __m512i right, float sum) {
  const auto low = [](__m512i words) { return __m512(_mm512_slli_epi32(words, 16)); };
  const auto high = [](__m512i words) {
    return __m512(_mm512_and_si512(words, _mm512_set1_epi32(-0x10000)));
  };
  float products[2][kTileDepth / 2];
  _mm512_storeu_ps(products[0], _mm512_mul_ps(low(left), low(right)));
  _mm512_storeu_ps(products[1], _mm512_mul_ps(high(left), high(right)));
  float even = 0;
  float odd = 0;
  for (std::int64_t i = 0; i < kTileDepth / 2; ++i) {
    even += products[0][i];
    odd += products[1][i];
  }
  return sum + (even + odd);
}

// sum of a[c] * b[c], step by step and term by term as dP adds them (pair_terms.h).
template <int kTerms>
TILEWISE_INLINE float pair_inner_product(const std::uint16_t* a, const std::uint16_t* b,
                                         std::int64_t width) {
  float sum = 0;
  for (std::int64_t c = 0; c < width; c += kTileDepth) {
    if constexpr (kTerms == 1) {
      sum = add_pair_products(load_terms(a, c, width), load_terms(b, c, width), sum);
    } else {
      const __m512i left = load_terms<Term::kHigh>(a, c, width);
      const __m512i right = load_terms<Term::kHigh>(b, c, width);
      const __m512i low_left = load_terms<Term::kLow>(a, c, width);
      const __m512i low_right = load_terms<Term::kLow>(b, c, width);
      sum = add_pair_products(left, right, sum);
      sum = add_pair_products(left, low_right, sum);
      sum = add_pair_products(low_left, low_right, sum);
      sum = add_pair_products(low_left, right, sum);
    }
  }
  return sum;
}

// How a worker computes blocks of keys, for backward_run.h.  kTerms: 1 for bf16, 2 for fp16
template <int kTerms>
struct PairKeys {
  using Scratch = PairKeyScratch;
  using Packed = PackedQueries;
  static constexpr int kPackedCopies = 2 * kTerms;  // rows and columns
  static constexpr std::int64_t kMostPanels = kMostPairKeyPanels<kTerms>;

  static Packed take_packed(const Problem& problem, Arena& arena) {
    return needs_key_sweep(problem) ? take_packed_queries<kTerms>(problem, arena) : Packed{};
  }
  static void pack(const HeadContext& context, std::int64_t first, std::int64_t count,
                   const Packed& packed) {
    pack_queries<kTerms>(context, first, count, packed);
  }
  static Scratch take(const Problem& problem, std::int64_t panels, Arena& arena) {
    return take_pair_key_scratch<kTerms>(problem, panels, arena);
  }
  // A row of dO times one of O.
  template <class Dout, class Out>
  static float inner_product(const Dout* dout, const Out* out, std::int64_t width) {
    using Half = std::conditional_t<kTerms == 1, math::BFloat16, math::Float16>;
    if constexpr (std::is_same_v<Dout, Half> && std::is_same_v<Out, Half>) {
      return pair_inner_product<kTerms>(reinterpret_cast<const std::uint16_t*>(dout),
                                        reinterpret_cast<const std::uint16_t*>(out), width);
    } else {
      return cpu::TILEWISE_TARGET::inner_product<float>(out, dout, width);
    }
  }
  static void run(const RunContext& context, const KeyBlock& block, KeyPass<float> pass,
                  const Packed& packed, const Scratch& scratch) {
    if (mark_odd_keys<kTerms>(block, scratch)) {
      if (key_block_on_unit<kTerms>(context, block, pass, packed, scratch)) return;
      pass.careful = true;  // dQ has been added
    }
    key_block<float, kPanelRegisters>(context, block, pass, scratch.plain);
  }
};

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_TILES
