// Recomputation of P = exp(S - LSE) and dS for one tile, which both sweeps of the backward pass
// use:
//
//   main_loop.h       owns a block of keys, SIMD lanes = keys: dK and dV; adds dS K to dQ
//   bias_gradient.h   owns a tile of the bias, SIMD lanes = queries: dBias
#pragma once

#include "cpu/backward/units.h"
#include "cpu/common/accumulate.h"
#include "cpu/common/dropout.h"
#include "cpu/common/schedule.h"
#include "cpu/common/score_mod.h"
#include "cpu/common/traffic.h"
#include "math/integer.h"
#include "math/softmax_state.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Length of a tile along t: of keys when lanes are queries, of queries when lanes are keys.
inline constexpr std::int64_t kGradientTile = kMostPackedRows;

// The working arrays of a tile, (kGradientTile, kWidth) each.
template <class T>
struct GradientTile {
  T* probs;      // scores, then P, then P after dropout
  T* gradients;  // dP, then dS
  T* keep;       // with dropout
  ScoreRecord<T> record;
  T* given;  // the gradients that a score function gets
};

template <class E>
struct GradientScratch {
  using T = SumOf<E>;
  GradientTile<T> tile;
  T* lse;    // per query of the tile or panel: LSE in the representation of the scores
  T* delta;  // per query: rowsum(O * dO) - dLSE
  MaskScratch<T> mask;
  typename BitsOf<T>::Word* seen;  // (kGradientTile, kWidth), where operands are not finite
  E* stage_a;                      // (kGradientTile, operand_count(D)): Q or K rows
  E* stage_b;                      // (kGradientTile, operand_count(Dv)): dO or V rows
  E* packed_a;                     // (packed_size(D)): columns of Q, for dK
  E* packed_b;                     // (packed_size(Dv)): columns of dO, for dV
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
  const std::int64_t of_function = problem.has_score_function() ? kTile : 0;
  scratch.tile.record.derivative = arena.take<T>(problem.softcap > 0 ? kTile : 0);
  scratch.tile.record.before = arena.take<T>(of_function);
  scratch.tile.given = arena.take<T>(of_function);
  scratch.lse = arena.take<T>(kMostQueries);
  scratch.delta = arena.take<T>(kMostQueries);
  scratch.mask.low = arena.take<T>(kMostQueries);
  scratch.mask.high = arena.take<T>(kMostQueries);
  scratch.mask.visible = arena.take<std::uint8_t>(kTile);
  scratch.seen = arena.take<typename BitsOf<T>::Word>(kTile);
  scratch.stage_a = arena.take<E>(kGradientTile * operand_count<E>(problem.head_dim));
  scratch.stage_b = arena.take<E>(kGradientTile * operand_count<E>(problem.value_dim));
  scratch.packed_a = arena.take<E>(problem.dk.present() ? packed_size<E>(problem.head_dim) : 0);
  scratch.packed_b = arena.take<E>(problem.dv.present() ? packed_size<E>(problem.value_dim) : 0);
  scratch.bands = arena.take<Band>(problem::max_bands(problem));
  return scratch;
}

// Turns masked scores and dP into P and dS, in place, in the first kColumns registers of each row.
//
// lse, delta: per lane (lanes are queries) or per row (lanes are keys)
template <class E, Lanes kLanesAre, int kColumns, int kWidth>
void gradient_step(const Problem& problem, const TileBounds& bounds,
                   const GradientScratch<E>& scratch) {
  using T = SumOf<E>;
  constexpr bool kQueries = kLanesAre == Lanes::kQueries;
  const GradientTile<T>& tile = scratch.tile;
  const math::ScaleLog2<Vec<T>> scale_log2 = ScoreScaling<T>(problem).scale_log2();
  for (std::int64_t t = 0; t < bounds.t_count; ++t) {
    for (int lane = 0; lane < kColumns * Vec<T>::kLanes; lane += Vec<T>::kLanes) {
      const std::int64_t at = t * kWidth + lane;
      const Vec<T> lse = kQueries ? Vec<T>::load(scratch.lse + lane) : Vec<T>(scratch.lse[t]);
      const Vec<T> delta = kQueries ? Vec<T>::load(scratch.delta + lane) : Vec<T>(scratch.delta[t]);
      const Vec<T> score = Vec<T>::load(tile.probs + at);
      const Vec<T> zero(T(0));
      // A masked score is selected out here too, because the LSE of a row that sees a NaN is NaN.
      const Vec<T> prob = select(score == Vec<T>(-math::Limits<T>::kInfinity), zero,
                                 math::probability(score, lse, scale_log2));
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

// Multiplies dS by the derivative of the softcap, which makes it the gradient of the scaled
// product.
template <class T, int kWidth>
void apply_softcap_derivative(const TileBounds& bounds, const GradientTile<T>& tile) {
  for (std::int64_t at = 0; at < bounds.t_count * kWidth; at += Vec<T>::kLanes) {
    const Vec<T> gradient = Vec<T>::load(tile.gradients + at);
    (gradient * Vec<T>::load(tile.record.derivative + at)).store(tile.gradients + at);
  }
}

// Turns dS, which is in the units of dP, into the gradient of the scaled product: through the score
// function, then through the softcap.
template <class T, Lanes kLanesAre, int kWidth>
void apply_score_derivatives(const HeadContext& context, const TileBounds& bounds,
                             const GradientUnits<T>& units, const GradientTile<T>& tile) {
  if (context.problem->has_score_function()) {
    const GradientFactor<T> natural(1, units, T(1));
    apply_score_function_derivative<T, kLanesAre, kWidth>(
        context, bounds, {natural.first, natural.second, units.dout_rows, units.v_panel},
        tile.record.before, tile.given, tile.gradients);
  }
  if (context.problem->softcap > 0) apply_softcap_derivative<T, kWidth>(bounds, tile);
}

// The operands of a tile: rows along t (read in place or staged), and panels along the lanes
// (packed).
template <class E>
struct GradientOperands {
  Rows<E> score_rows;      // (t_count, operands(D)): Q or K
  Rows<E> prob_rows;       // (t_count, operands(Dv)): dO or V
  const E* score_panel;    // (operand_count(D), kWidth): K or Q, with the sign of the scale
  const E* prob_panel;     // (operand_count(Dv), kWidth): V or dO
  Prefetcher* prefetcher;  // two, for the next rows; or nullptr
  const GradientUnits<SumOf<E>>* units;
  bool all_finite;  // rows and panels
};

// Computes P and dS (before apply_score_derivatives()) of a tile of kWidth lanes, of which the
// first kColumns registers are in use. Returns whether all lanes see all rows, if some operands are
// not finite.
template <class E, Lanes kLanesAre, int kColumns, int kWidth>
TileSight<SumOf<E>> recompute_tile(const HeadContext& context, const TileBounds& bounds,
                                   TileClass tile_class, const ActiveRegisters<kColumns>& active,
                                   const GradientOperands<E>& given,
                                   const GradientScratch<E>& scratch) {
  using T = SumOf<E>;
  const Problem& problem = *context.problem;
  gemm_masked<E, kColumns, kWidth>(given.score_rows, bounds.t_count, given.score_panel,
                                   operand_count<E>(problem.head_dim), active, scratch.tile.probs,
                                   given.prefetcher);
  divide_scores<T, kWidth>(bounds.t_count, given.units->k_panel, given.units->q_rows,
                           scratch.tile.probs);
  apply_score_mod<T, kLanesAre, kWidth>(context, bounds, tile_class, scratch.mask,
                                        scratch.tile.probs, scratch.tile.record);
  if (problem.has_score_function())
    clear_masked_scores<T, kWidth>(bounds, scratch.tile.probs, scratch.tile.record.before);
  TileSight<T> sight = {scratch.seen, true};
  if (!given.all_finite) {
    sight.seen_whole =
        record_seen<T, kWidth>(bounds.t_count, bounds.lane_count, scratch.tile.probs, scratch.seen);
  }
  gemm_masked<E, kColumns, kWidth>(
      given.prob_rows, bounds.t_count, given.prob_panel, operand_count<E>(problem.value_dim),
      active, scratch.tile.gradients, given.prefetcher == nullptr ? nullptr : given.prefetcher + 1);
  if (problem.dropout_p > 0) {
    // Lanes after the end of the tile are never stored, but must hold numbers.
    for (std::int64_t at = 0; at < bounds.t_count * kWidth; ++at) scratch.tile.keep[at] = T(0);
    fill_dropout<T, kLanesAre, kWidth>(context, bounds, dropout_scale<T>(*context.problem),
                                       scratch.tile.keep);
  }
  gradient_step<E, kLanesAre, kColumns, kWidth>(problem, bounds, scratch);
  return sight;
}

template <class T>
struct ScaledDelta {
  View view;
  T unit_a;  // it is multiplied by both units, whose product T may not hold
  T unit_b;
};

// Loads LSE and delta of queries [first, first + count) of the sequence into the scratch, and pads
// them with zeros up to `size`.
template <class E>
void load_row_statistics(const HeadContext& context, const ScaledDelta<SumOf<E>>& delta,
                         std::int64_t first, std::int64_t count, std::int64_t size,
                         const GradientScratch<E>& scratch) {
  using T = SumOf<E>;
  const Problem& problem = *context.problem;
  const std::int64_t b = context.sequence.batch;
  const T per_natural = T(1) / ScoreScaling<T>(problem).factor;
  for (std::int64_t i = 0; i < size; ++i) {
    const std::int64_t row = context.sequence.q_start + first + i;
    scratch.lse[i] =
        i < count ? load_statistic<T>(problem.lse, b, context.head, row) * per_natural : T(0);
    const T of_row = i < count ? load_statistic<T>(delta.view, b, context.head, row) : T(0);
    scratch.delta[i] = multiply_exactly(of_row, delta.unit_a) * delta.unit_b;
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
