// The packed operands of the backward pass on AMX: Q and dO, packed once for all blocks, and K and
// V of a block of keys. Numbers have one term (bf16) or two (fp16).
#pragma once

#include "cpu/amx/backward_block.h"
#include "cpu/backward/run.h"
#include "math/integer.h"

#if TILEWISE_HAS_AMX

namespace tilewise::cpu::TILEWISE_TARGET {

// Queries of a tile, for which the sums of dK and dV are loaded and stored once. P and dS in pairs
// take 32 KB each.
template <int kTerms>
inline constexpr std::int64_t kAmxQueries = 512 / kTerms;
template <int kTerms>
inline constexpr std::int64_t kTileGroups = kAmxQueries<kTerms> / kBlockQueries;
// Panels of keys that share a pass over the queries, for which the fp32 sums of dQ are loaded and
// stored once. dS of 32 queries and all of these keys takes 32 KB.
template <int kTerms>
inline constexpr std::int64_t kMostAmxKeyPanels = 16 / kTerms;

// Q and dO as left operands, in groups of 32 queries: rows for S and dP, columns for dK and dV.
// Every term takes as many bytes as one copy in fp32.
struct PackedQueries {
  std::uint16_t* q_rows;        // (B, H, groups, terms, 2, padded D / 32, 16, 32)
  std::uint16_t* q_columns;     // (B, H, groups, terms, padded D / 16, 16, 32)
  std::uint16_t* dout_rows;     // (B, H, groups, terms, 2, padded Dv / 32, 16, 32)
  std::uint16_t* dout_columns;  // (B, H, groups, terms, padded Dv / 16, 16, 32)
  std::uint8_t* non_finite;     // (B, H, groups): 1 where Q or dO is not finite; only for two terms
  std::int64_t groups;          // of one head

  // The group that begins with row `first` of the sequence. Every packed sequence begins a group of
  // its own.
  TILEWISE_INLINE std::int64_t group_at(const HeadContext& context, std::int64_t first) const {
    const Problem& problem = *context.problem;
    const std::int64_t batch = problem.q_packed ? 0 : context.sequence.batch;
    const std::int64_t before =
        problem.q_packed ? context.sequence.q_start / kBlockQueries + context.sequence.batch : 0;
    return (batch * problem.heads + context.head) * groups + before + first / kBlockQueries;
  }
};

TILEWISE_INLINE std::int64_t padded_pairs(std::int64_t width) {
  return math::round_up(width, kTileDepth);
}

template <int kTerms>
TILEWISE_INLINE PackedQueries take_packed_queries(const Problem& problem, Arena& arena) {
  PackedQueries packed = {};
  packed.groups =
      math::ceil_div(problem.q_rows, kBlockQueries) + (problem.q_packed ? problem.batch : 0);
  const std::int64_t batches = problem.q_packed ? 1 : problem.batch;
  std::int64_t rows = 0;
  if (__builtin_mul_overflow(batches * problem.heads * kBlockQueries, packed.groups, &rows))
    rows = INT64_MAX;
  const auto take = [&](std::int64_t width) {
    std::int64_t count = 0;
    if (__builtin_mul_overflow(rows, kTerms * padded_pairs(width), &count)) count = INT64_MAX;
    return arena.take<std::uint16_t>(count);
  };
  packed.q_rows = take(problem.head_dim);
  packed.q_columns = take(problem.head_dim);
  packed.dout_rows = take(problem.value_dim);
  packed.dout_columns = take(problem.value_dim);
  packed.non_finite = arena.take<std::uint8_t>(kTerms == 2 ? rows / kBlockQueries : 0);
  return packed;
}

// Packs one group of 32 rows, as rows and as columns.
template <int kTerms>
TILEWISE_INLINE void pack_group(const RowBlock& rows, std::uint16_t* row_tiles,
                                std::uint16_t* column_tiles) {
  const std::int64_t padded = padded_pairs(rows.width);
  for_each_term<kTerms>([&](auto term, int number) {
    constexpr Term kTerm = decltype(term)::value;
    std::uint16_t* const columns = column_tiles + number * kBlockQueries * padded;
    pack_row_tiles<kTerm>(rows, row_tiles + number * kBlockQueries * padded);
    // Columns come in blocks of 32, so that the second half of the last block may lie after the end
    // of the matrix.
    __builtin_memset(columns + (padded - kTileRows) * kTileDepth, 0, kTileElements * 2);
    pack_column_tiles<kTerm>(rows, 1, nullptr, columns);
  });
}

template <int kTerms>
TILEWISE_INLINE void pack_queries(const HeadContext& context, std::int64_t first,
                                  std::int64_t count, const PackedQueries& packed) {
  const Problem& problem = *context.problem;
  for (std::int64_t i = first; i < first + count; i += kBlockQueries) {
    const std::int64_t group = packed.group_at(context, i);
    const std::int64_t at = group * kBlockQueries * kTerms;
    const std::int64_t row = context.sequence.q_start + i;
    const std::int64_t rows = math::min(kBlockQueries, first + count - i);
    const std::int64_t at_d = at * padded_pairs(problem.head_dim);
    const std::int64_t at_v = at * padded_pairs(problem.value_dim);
    const RowBlock q = {&problem.q, context.sequence.batch, context.head, row,
                        rows,       problem.head_dim};
    const RowBlock dout = {&problem.dout, context.sequence.batch, context.head, row,
                           rows,          problem.value_dim};
    pack_group<kTerms>(q, packed.q_rows + at_d, packed.q_columns + at_d);
    pack_group<kTerms>(dout, packed.dout_rows + at_v, packed.dout_columns + at_v);
    if constexpr (kTerms == 2) {
      std::uint8_t non_finite[kBlockQueries];
      const bool any_q = flag_non_finite_rows<kTerms>(q, non_finite);
      packed.non_finite[group] = any_q || flag_non_finite_rows<kTerms>(dout, non_finite) ? 1 : 0;
    }
  }
}

// words[column / 32][n][column % 32] = rows n and n + 16 of a column. It is the right operand of
// dQ, whose left operand has keys n and n + 16 in a word.
//
// words: (round_up(width, 32) / 32, 16, 32)
template <Term kTerm>
TILEWISE_INLINE void pack_key_words(const RowBlock& rows, const std::uint8_t* zeroed,
                                    std::uint32_t* words) {
  const std::uint16_t* const base = rows_16bit(rows);
  const __m512i low_order = _mm512_or_si512(
      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
      _mm512_slli_epi32(
          _mm512_setr_epi32(32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47), 16));
  const __m512i high_order = _mm512_add_epi16(low_order, _mm512_set1_epi16(16));
  const auto part = [&](std::int64_t r, std::int64_t c) {
    return r < rows.count && (zeroed == nullptr || zeroed[r] == 0)
               ? load_terms<kTerm>(base + r * rows.view->row, c, rows.width)
               : _mm512_setzero_si512();
  };
  for (std::int64_t n = 0; n < kTileRows; ++n) {
    for (std::int64_t c = 0; c < rows.width; c += 32) {
      const __m512i low = part(n, c);
      const __m512i high = part(n + kTileRows, c);
      std::uint32_t* const to = words + (c / 32 * kTileRows + n) * 32;
      _mm512_storeu_si512(to, _mm512_permutex2var_epi16(low, low_order, high));
      _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi16(low, high_order, high));
    }
  }
}

struct AmxBackwardScratch {
  KeyScratch<float> fallback;     // for blocks that tile products cannot compute
  float* dk_panels;               // (panels, padded D, kAmxWidth)
  float* dv_panels;               // (panels, padded Dv, kAmxWidth)
  std::uint32_t* k_pairs;         // (panels, terms, padded D / 2, kAmxWidth), with the scale's sign
  std::uint32_t* v_pairs;         // (panels, terms, padded Dv / 2, kAmxWidth)
  std::uint32_t* key_words;       // (panels, terms, padded D / 32, 16, 32)
  float* blocks;                  // (2, 2, kBlockQueries, kAmxWidth): S and dP, two of each
  std::uint32_t* prob_pairs;      // (kTileGroups, terms, kBlockQueries / 2, kAmxWidth)
  std::uint32_t* gradient_pairs;  // (kTileGroups, terms, kBlockQueries / 2, kAmxWidth)
  std::uint32_t* gradient_rows;   // (kAmxQueries / 16, panels, terms, 16, 16)
  float* lse;                     // (kAmxQueries), in the representation of the scores
  float* delta;                   // (kAmxQueries)
  float* exponents;               // (kAmxQueries): see fast_probability()
  std::uint8_t* non_finite_keys;  // (2, panels, kAmxWidth): 1 where K (or V) is not finite
  bool* fast_path;                // (kTileGroups): 1 where a whole block may be computed in slices
  std::uint8_t* visited;          // (panels): 1 once a query has seen it
  float* last_rows;               // (kBlockQueries, padded D): dQ of the last rows
  std::int64_t head_dim;          // padded
  std::int64_t value_dim;         // padded
  std::int64_t panels;
};

template <int kTerms>
TILEWISE_INLINE AmxBackwardScratch take_amx_backward_scratch(const Problem& problem,
                                                             std::int64_t panels, Arena& arena) {
  constexpr std::int64_t kQueries = kAmxQueries<kTerms>;
  const std::int64_t terms = kTerms * panels;
  AmxBackwardScratch scratch;
  scratch.fallback = take_key_scratch<float, kAmxWidth>(problem, panels, arena);
  scratch.panels = panels;
  scratch.head_dim = padded_pairs(problem.head_dim);
  scratch.value_dim = padded_pairs(problem.value_dim);
  scratch.dk_panels = arena.take<float>(panels * scratch.head_dim * kAmxWidth);
  scratch.dv_panels = arena.take<float>(panels * scratch.value_dim * kAmxWidth);
  scratch.k_pairs = arena.take<std::uint32_t>(terms * scratch.head_dim / 2 * kAmxWidth);
  scratch.v_pairs = arena.take<std::uint32_t>(terms * scratch.value_dim / 2 * kAmxWidth);
  scratch.key_words = arena.take<std::uint32_t>(terms * scratch.head_dim / 2 * 32);
  scratch.blocks = arena.take<float>(std::int64_t{4} * kBlockQueries * kAmxWidth);
  scratch.prob_pairs = arena.take<std::uint32_t>(kTerms * kQueries / 2 * kAmxWidth);
  scratch.gradient_pairs = arena.take<std::uint32_t>(kTerms * kQueries / 2 * kAmxWidth);
  scratch.gradient_rows = arena.take<std::uint32_t>(terms * kQueries * kAmxWidth / 2);
  scratch.lse = arena.take<float>(kQueries);
  scratch.delta = arena.take<float>(kQueries);
  scratch.exponents = arena.take<float>(kQueries);
  scratch.non_finite_keys = arena.take<std::uint8_t>(2 * panels * kAmxWidth);
  scratch.fast_path = arena.take<bool>(kTileGroups<kTerms>);
  scratch.visited = arena.take<std::uint8_t>(panels);
  scratch.last_rows = arena.take<float>(kBlockQueries * scratch.head_dim);
  return scratch;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AMX
