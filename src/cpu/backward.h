// The backward pass: what its sweeps share. FlashAttention-2 (Dao 2023, algorithm 2) recomputes
// P = exp(S - LSE) tile by tile, with five products:
//
//   backward_keys.h   owns a block of keys, SIMD lanes = keys: S, dP, and from them dK and dV; and
//                     adds dS K to dQ (query_gradient.h), blocks in the order of keys
//   backward_bias.h   owns a tile of the bias, SIMD lanes = queries: dBias
#pragma once

#include "cpu/accumulate.h"
#include "cpu/forward_parts.h"
#include "cpu/schedule.h"
#include "math/integer.h"
#include "math/softmax_state.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Tiles along t: keys when lanes are queries, queries when lanes are keys.
inline constexpr std::int64_t kGradientTile = kMostPackedRows;

// A tile's working arrays, (kGradientTile, kWidth) each.
template <class T>
struct GradientTile {
  T* probs;       // scores, then P, then dropped P
  T* gradients;   // dP, then dS
  T* keep;        // with dropout
  T* derivative;  // with softcap
};

template <class E>
struct GradientScratch {
  using T = SumOf<E>;
  GradientTile<T> tile;
  T* lse;    // per query of the tile or panel: LSE in the units of the scores
  T* delta;  // per query: rowsum(O * dO) - dLSE
  MaskScratch<T> mask;
  CarefulScratch careful;
  E* stage_a;   // (kGradientTile, operands(D)): Q or K rows
  E* stage_b;   // (kGradientTile, operands(Dv)): dO or V rows
  E* packed_a;  // (packed_size(D)): columns of Q, for dK
  E* packed_b;  // (packed_size(Dv)): columns of dO, for dV
  Band* bands;
};

template <class E, int kWidth>
GradientScratch<E> take_gradient_scratch(const Problem& problem, Arena& arena) {
  using T = SumOf<E>;
  constexpr std::int64_t kTile = kGradientTile * kWidth;
  constexpr std::int64_t kMostQueries = kGradientTile > kWidth ? kGradientTile : kWidth;
  GradientScratch<E> scratch;
  scratch.tile.probs = arena.take<T>(kTile);
  scratch.tile.gradients = arena.take<T>(kTile);
  scratch.tile.keep = arena.take<T>(problem.dropout_p > 0 ? kTile : 0);
  scratch.tile.derivative = arena.take<T>(problem.softcap > 0 ? kTile : 0);
  scratch.lse = arena.take<T>(kMostQueries);
  scratch.delta = arena.take<T>(kMostQueries);
  scratch.mask.low = arena.take<T>(kMostQueries);
  scratch.mask.high = arena.take<T>(kMostQueries);
  scratch.mask.visible = arena.take<std::uint8_t>(kTile);
  scratch.careful.seen = arena.take<std::uint8_t>(kTile);
  scratch.careful.odd_a = arena.take<std::uint8_t>(kGradientTile);
  scratch.careful.odd_b = arena.take<std::uint8_t>(kGradientTile);
  scratch.stage_a = arena.take<E>(kGradientTile * operands<E>(problem.head_dim));
  scratch.stage_b = arena.take<E>(kGradientTile * operands<E>(problem.value_dim));
  scratch.packed_a = arena.take<E>(problem.dk.present() ? packed_size<E>(problem.head_dim) : 0);
  scratch.packed_b = arena.take<E>(problem.dv.present() ? packed_size<E>(problem.value_dim) : 0);
  scratch.bands = arena.take<Band>(problem::max_bands(problem));
  return scratch;
}

// From masked scores and dP to P and dS, in place, in the first kColumns registers of each row.
// lse and delta: per lane (queries) or per row (keys)
template <class E, Lanes kLanesAre, int kColumns, int kWidth>
void gradient_step(const Problem& problem, const Frame& frame, const GradientScratch<E>& scratch) {
  using T = SumOf<E>;
  constexpr bool kQueries = kLanesAre == Lanes::kQueries;
  const GradientTile<T>& tile = scratch.tile;
  const math::ExponentUnit<Vec<T>> unit = ScoreUnits<T>(problem).exponent();
  for (std::int64_t t = 0; t < frame.t_count; ++t) {
    for (int lane = 0; lane < kColumns * Vec<T>::kLanes; lane += Vec<T>::kLanes) {
      const std::int64_t at = t * kWidth + lane;
      const Vec<T> lse = kQueries ? Vec<T>::load(scratch.lse + lane) : Vec<T>(scratch.lse[t]);
      const Vec<T> delta = kQueries ? Vec<T>::load(scratch.delta + lane) : Vec<T>(scratch.delta[t]);
      const Vec<T> score = Vec<T>::load(tile.probs + at);
      const Vec<T> zero(T(0));
      // A masked score is selected out here too: the LSE of a row that sees a NaN is NaN.
      const Vec<T> prob = select(score == Vec<T>(-math::Limits<T>::kInfinity), zero,
                                 math::probability(score, lse, unit));
      Vec<T> dprob = Vec<T>::load(tile.gradients + at);
      Vec<T> dropped = prob;
      if (problem.dropout_p > 0) {
        const Vec<T> keep = Vec<T>::load(tile.keep + at);
        dprob = select(keep == zero, zero, dprob * keep);
        dropped = prob * keep;
      }
      dropped.store(tile.probs + at);
      math::score_gradient(prob, dprob, delta).store(tile.gradients + at);
    }
  }
}

// dS becomes the gradient of the scaled product: times the softcap's derivative.
template <class T, int kWidth>
void apply_softcap_derivative(const Frame& frame, const GradientTile<T>& tile) {
  for (std::int64_t at = 0; at < frame.t_count * kWidth; at += Vec<T>::kLanes) {
    const Vec<T> gradient = Vec<T>::load(tile.gradients + at);
    (gradient * Vec<T>::load(tile.derivative + at)).store(tile.gradients + at);
  }
}

// The operands of a tile: rows along t (read in place or staged), panels along the lanes (packed).
template <class E>
struct GradientOperands {
  Rows<E> score_rows;    // (t_count, operands(D)): Q or K
  Rows<E> prob_rows;     // (t_count, operands(Dv)): dO or V
  const E* score_panel;  // (operands(D), kWidth): K or Q, with the sign of the scale
  const E* prob_panel;   // (operands(Dv), kWidth): V or dO
  Ahead* ahead;          // two, for the rows that come next; or nullptr
};

// P and dS (before the softcap's derivative) of a tile of kWidth lanes, of which the first kColumns
// registers are in use.
template <class E, Lanes kLanesAre, int kColumns, int kWidth>
void recompute_tile(const HeadContext& context, const Frame& frame, TileClass tile_class,
                    const Steps<kColumns>& steps, const GradientOperands<E>& given, bool careful,
                    const GradientScratch<E>& scratch) {
  using T = SumOf<E>;
  const Problem& problem = *context.problem;
  stepped_product<E, kColumns, kWidth>(given.score_rows, frame.t_count, given.score_panel,
                                       operands<E>(problem.head_dim), steps, scratch.tile.probs,
                                       given.ahead);
  finish_scores<T, kLanesAre, kWidth>(context, frame, tile_class, scratch.mask, scratch.tile.probs,
                                      scratch.tile.derivative);
  if (careful) record_seen<T, kWidth>(frame.t_count, scratch.tile.probs, scratch.careful.seen);
  stepped_product<E, kColumns, kWidth>(
      given.prob_rows, frame.t_count, given.prob_panel, operands<E>(problem.value_dim), steps,
      scratch.tile.gradients, given.ahead == nullptr ? nullptr : given.ahead + 1);
  if (problem.dropout_p > 0) {
    // Lanes beyond the tile's end are never stored, but must hold numbers.
    for (std::int64_t at = 0; at < frame.t_count * kWidth; ++at) scratch.tile.keep[at] = T(0);
    fill_dropout<T, kLanesAre, kWidth>(context, frame, kept_factor<T>(*context.problem),
                                       scratch.tile.keep);
  }
  gradient_step<E, kLanesAre, kColumns, kWidth>(problem, frame, scratch);
}

// LSE and delta of queries [first, first + count) of the sequence into scratch; the rest of the
// array up to `size` as padding.
template <class E>
void load_row_statistics(const HeadContext& context, const View& delta, std::int64_t first,
                         std::int64_t count, std::int64_t size, const GradientScratch<E>& scratch) {
  using T = SumOf<E>;
  const Problem& problem = *context.problem;
  const std::int64_t b = context.sequence.batch;
  const T per_natural = T(1) / ScoreUnits<T>(problem).natural;
  for (std::int64_t i = 0; i < size; ++i) {
    const std::int64_t row = context.sequence.q_start + first + i;
    scratch.lse[i] =
        i < count ? load_statistic<T>(problem.lse, b, context.head, row) * per_natural : T(0);
    scratch.delta[i] = i < count ? load_statistic<T>(delta, b, context.head, row) : T(0);
  }
}

// delta = rowsum(O * dO) - dLSE of every row of every sequence. With one key, O = V: there Keys
// adds in the order in which it adds dP (backward_run.h), and dS is exactly zero, however large the
// K is that it is multiplied with.  delta: like lse
template <class T, class Keys>
void compute_delta(const Problem& problem, const HeadContext& context, const View& delta,
                   std::int64_t first, std::int64_t count) {
  const std::int64_t b = context.sequence.batch;
  for (std::int64_t i = first; i < first + count; ++i) {
    const std::int64_t row = context.sequence.q_start + i;
    T sum = T(0);
    with_storage(problem.out.dtype, [&](auto out_storage) {
      with_storage(problem.dout.dtype, [&](auto dout_storage) {
        using Out = decltype(out_storage);
        using Dout = decltype(dout_storage);
        const Out* const out =
            static_cast<const Out*>(problem.out.data) + problem.out.offset(b, context.head, row);
        const Dout* const dout =
            static_cast<const Dout*>(problem.dout.data) + problem.dout.offset(b, context.head, row);
        ask_for_later_row(out, problem.out.row, problem.value_dim);
        ask_for_later_row(dout, problem.dout.row, problem.value_dim);
        sum = context.sequence.k_len == 1 ? Keys::inner_product(dout, out, problem.value_dim)
                                          : inner_product<T>(out, dout, problem.value_dim);
      });
    });
    if (problem.dlse.present()) sum -= load_statistic<T>(problem.dlse, b, context.head, row);
    store_statistic(delta, b, context.head, row, sum);
  }
}

// The rows that see any of the keys [first, first + count) through any band.
TILEWISE_INLINE math::KeyRange rows_of_keys(const HeadContext& context, std::int64_t first,
                                            std::int64_t count) {
  math::KeyRange range = {context.sequence.q_len, 0};
  for (std::int64_t s = 0; s < context.band_count; ++s) {
    const math::KeyRange of_band = math::tile_rows(context.bands[s], first, first + count);
    if (of_band.begin >= of_band.end) continue;
    range.begin = math::min(range.begin, of_band.begin);
    range.end = math::max(range.end, of_band.end);
  }
  return {math::max(range.begin, 0), math::min(range.end, context.sequence.q_len)};
}

TILEWISE_INLINE std::int64_t row_bytes(const View& view, std::int64_t width) {
  return width * problem::dtype_size(view.dtype);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
