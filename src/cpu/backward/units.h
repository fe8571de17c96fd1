// The powers of two by which the backward pass multiplies its operands, so that neither they nor
// the sums are denormal (simd/magnitude.h). One set serves a kv head of a sequence: dQ sums over
// all blocks of keys, and dK over all query heads of the group. The gradients are divided by them
// when they are stored.
#pragma once

#include "cpu/backward/delta.h"
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
  T delta = T(1);         // delta as it is stored; at most 1

  // The factor of delta, besides dout_rows, that brings it to the units of dP.
  TILEWISE_INLINE T v_of_delta() const { return v_panel / delta; }
};

// The factor that takes a sum in some units to a gradient, in two steps, because T may not hold it.
// Neither is below the smallest normal number, so that infinity stays infinity.
template <class T>
struct GradientFactor {
  T first = T(1);
  T second;

  TILEWISE_INLINE GradientFactor(double scale, T unit) : GradientFactor(scale, {}, unit) {}

  // The factor of sums of dS times an operand that has the unit `unit`.
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
  T delta;       // the largest |delta| that is finite
  T delta_unit;  // by which it is multiplied
};

// Measures delta of a kv head's rows. Returns whether all of it is finite.
template <class T>
bool measure_delta(const Problem& problem, const Sequence& sequence, std::int64_t kv_head,
                   const View& delta, HeadMagnitudes<T>& head) {
  bool finite = true;
  for (std::int64_t h = kv_head * problem.group; h < (kv_head + 1) * problem.group; ++h) {
    for (std::int64_t i = 0; i < sequence.q_len; ++i) {
      const T x = math::absolute(load_statistic<T>(delta, sequence.batch, h, sequence.q_start + i));
      if (math::is_finite(x)) head.delta = math::maximum(x, head.delta);
      finite = finite && math::is_finite(x);
    }
  }
  return finite;
}

// Gives a unit to delta of a kv head if finite O and dO are so large that it may have overflowed.
template <class T>
void lower_delta_unit(const Problem& problem, const Sequence& sequence, std::int64_t kv_head,
                      const View& delta, HeadMagnitudes<T>& head) {
  Magnitude<T> out = {};
  for (std::int64_t h = kv_head * problem.group; h < (kv_head + 1) * problem.group; ++h) {
    merge_magnitude(measure_finite<T>({&problem.out, sequence.batch, h, sequence.q_start,
                                       sequence.q_len, problem.value_dim}),
                    out);
  }
  const int reach = exponent_above(out.largest) + exponent_above(head.dout.largest) +
                    exponent_above(problem.value_dim);
  if (reach <= Exponents<T>::kMost) return;
  head.delta_unit = exact_power<T>(Exponents<T>::kMost - reach);
  for (std::int64_t h = kv_head * problem.group; h < (kv_head + 1) * problem.group; ++h)
    compute_delta_in_unit(problem, sequence, h, head.delta_unit, delta);
  head.delta = T(0);
  measure_delta(problem, sequence, kv_head, delta, head);
}

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
  }
  head.delta_unit = T(1);
  if (!measure_delta(problem, sequence, kv_head, delta, head))
    lower_delta_unit(problem, sequence, kv_head, delta, head);
  return head;
}

// The exponent that lifts operands to 2^kLift or, where they are of ordinary size, by 2^kLift. They
// are at most `room` afterwards.
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
                exponent_above(head.delta) - exponent_above(head.delta_unit) + 1 + dout);
  const int factor = math::max(
      math::max(exponent_above(head.q.largest) + q, exponent_above(head.k.largest) + k), 0);
  const int room = kMost - 2 - terms - keep - factor - reach + exponent_above(head.v.largest);
  GradientUnits<T> units;
  units.delta = head.delta_unit;
  units.q_rows = units.q_columns = exact_power<T>(q);
  units.k_panel = units.k_rows = exact_power<T>(k);
  units.dout_rows = exact_power<T>(dout);
  units.v_panel = exact_power<T>(lifting_exponent(head.v.largest, room));
  units.dout_columns =
      exact_power<T>(lifting_exponent(head.dout.largest, kMost - 1 - terms - keep));
  return units;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
