// The powers of two by which the backward pass multiplies its operands, so that neither they nor
// the sums are denormal (simd/magnitude.h). One set serves a kv head of a sequence: dQ sums over
// all blocks of keys, and dK over all query heads of the group. The gradients are divided by them
// when they are stored.
#pragma once

#include "cpu/common/dropout.h"
#include "cpu/common/schedule.h"
#include "cpu/common/score_mod.h"
#include "cpu/simd/magnitude.h"
#include "math/exp2.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

template <class T>
struct GradientUnits {
  T q_rows = T(1);  // Q and K in S
  T k_panel = T(1);
  T dout_rows = T(1);  // dO and V in dP
  T v_panel = T(1);
  T dout_columns = T(1);  // dO in dV
  T q_columns = T(1);     // Q in dK
  T k_rows = T(1);        // K in dQ
};

// The factor that takes a sum in some units to a gradient, in two steps, because T may not hold it.
// Neither is below the smallest normal number, so that infinity stays infinity.
template <class T>
struct GradientFactor {
  T first = T(1);
  T second;

  TILEWISE_INLINE GradientFactor(double scale, T unit) : GradientFactor(scale, {}, unit) {}

  // For sums of dS, and of what it is multiplied by in `unit`.
  TILEWISE_INLINE GradientFactor(double scale, const GradientUnits<T>& dscore, T unit) {
    const double least = math::exp2(-static_cast<double>(Exponents<T>::kMost));
    const double a = static_cast<double>(dscore.dout_rows);
    const double b = static_cast<double>(dscore.v_panel);
    double exact = scale / a / b / static_cast<double>(unit);
    if (scale != 0 && __builtin_fabs(exact) < least) {
      first = static_cast<T>(least);
      exact = scale / a / least / b / static_cast<double>(unit);
      if (__builtin_fabs(exact) < least) exact = least;
    }
    second = static_cast<T>(exact);
  }
};

template <class T>
TILEWISE_INLINE Magnitude<T> measure_finite(const RowBlock& rows) {
  Magnitude<T> magnitude = measure_rows<T>(rows);
  if (!math::is_finite(magnitude.largest)) magnitude.largest = largest_finite<T>(rows);
  return magnitude;
}
template <class T>
TILEWISE_INLINE void merge_magnitude(const Magnitude<T>& more, Magnitude<T>& all) {
  all.largest = math::maximum(more.largest, all.largest);
  all.has_denormals = all.has_denormals || more.has_denormals;
}

// The magnitudes of the operands of one kv head, and that of delta.
template <class T>
struct HeadMagnitudes {
  Magnitude<T> q, k, v, dout;
  T delta;
};

template <class T>
HeadMagnitudes<T> measure_head(const Problem& problem, const Sequence& sequence,
                               std::int64_t kv_head, const View& delta) {
  const std::int64_t batch = sequence.batch;
  HeadMagnitudes<T> head = {};
  head.k = measure_finite<T>(
      {&problem.k, batch, kv_head, sequence.k_start, sequence.k_len, problem.head_dim});
  head.v = measure_finite<T>(
      {&problem.v, batch, kv_head, sequence.k_start, sequence.k_len, problem.value_dim});
  for (std::int64_t h = kv_head * problem.group; h < (kv_head + 1) * problem.group; ++h) {
    merge_magnitude(measure_finite<T>(
                        {&problem.q, batch, h, sequence.q_start, sequence.q_len, problem.head_dim}),
                    head.q);
    merge_magnitude(measure_finite<T>({&problem.dout, batch, h, sequence.q_start, sequence.q_len,
                                       problem.value_dim}),
                    head.dout);
    for (std::int64_t i = 0; i < sequence.q_len; ++i) {
      const T x = math::absolute(load_statistic<T>(delta, batch, h, sequence.q_start + i));
      if (math::is_finite(x)) head.delta = math::maximum(x, head.delta);
    }
  }
  return head;
}

// The exponent that lifts operands to 2^kLift or, where they are of ordinary size, by 2^kLift; at
// most `room` afterwards.
template <class T>
TILEWISE_INLINE int lifting_exponent(T largest, int room) {
  constexpr int kLift = Exponents<T>::kLift;
  constexpr int kMost = Exponents<T>::kMost;
  const int above = exponent_above(largest);
  const int wanted = largest != T(0) && above < Exponents<T>::kSmall ? kLift - above : kLift;
  return math::clamp(math::min(wanted, room - above), -kMost, kMost);
}

template <class T>
GradientUnits<T> choose_units(const Problem& problem, const Sequence& sequence,
                              const HeadMagnitudes<T>& head) {
  constexpr int kMost = Exponents<T>::kMost;
  const int depth = exponent_above(math::max(problem.head_dim, problem.value_dim));
  const int terms = exponent_above(math::max(sequence.q_len * problem.group, sequence.k_len));
  const int keep = exponent_above(1 / (1 - problem.dropout_p));
  const auto raise = [&](const Magnitude<T>& a, const Magnitude<T>& other, int other_exponent) {
    return raising_exponent(a, kMost - depth - exponent_above(other.largest) - other_exponent);
  };
  const bool lifts_scores = scores_have_units(problem);
  const int k = lifts_scores ? raise(head.k, head.q, 0) : 0;
  const int q = lifts_scores ? raise(head.q, head.k, k) : 0;
  const int dout = raise(head.dout, head.v, 0);
  const int reach =
      math::max(exponent_above(head.dout.largest) + dout + exponent_above(head.v.largest) + depth,
                exponent_above(head.delta) + dout);
  const int factor = math::max(
      math::max(exponent_above(head.q.largest) + q, exponent_above(head.k.largest) + k), 0);
  const int room = kMost - 2 - terms - keep - factor - reach + exponent_above(head.v.largest);
  GradientUnits<T> units;
  units.q_rows = units.q_columns = exact_power<T>(q);
  units.k_panel = units.k_rows = exact_power<T>(k);
  units.dout_rows = exact_power<T>(dout);
  units.v_panel = exact_power<T>(lifting_exponent(head.v.largest, room));
  units.dout_columns =
      exact_power<T>(lifting_exponent(head.dout.largest, kMost - 1 - terms - keep));
  return units;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
