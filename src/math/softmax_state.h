// The softmax monoid. A piece of a row is the state (max, sum, out): the running maximum of the
// scores, the sum of exp(score - max), and the sum of exp(score - max) * value row. Everything that
// Tilewise does with a row is a merge of such pieces: single scores (online softmax), key tiles
// (FlashAttention-1 and -2), slices of a cache (Flash-Decoding), shards of other machines (Ring
// Attention).
//
// The exponential is exp2: exp(a - b) = 2^((a - b) * log2(e)). The difference comes first: it is
// exact where it matters, while scores of some hundreds, brought into units of log 2 one by one,
// would carry a rounding each into the exponent. `unit` is log2(e) for scores as the formula has
// them; a kernel that keeps them unscaled (q.k alone) passes scale * log2(e), which must be
// positive. T is one lane or many. `out` stays with the caller (it is a row, a register tile, a
// buffer); the factors that it needs are given here.
#pragma once

#include "math/exp2.h"

namespace tilewise::math {

template <class T>
struct SoftmaxState {
  T max;  // -inf: the empty state, whose `out` may hold anything
  T sum;
};

template <class T>
TILEWISE_INLINE SoftmaxState<T> empty_state() {
  using L = Lane<T>;
  return {T(-Limits<L>::kInfinity), T(L(0))};
}

// The point that exponents are taken against: the maximum, or 0 where nothing was seen yet, which
// makes exp(-inf - anchor) = 0 instead of NaN.
template <class T>
TILEWISE_INLINE T anchor(T max) {
  using L = Lane<T>;
  return select(max == T(-Limits<L>::kInfinity), T(L(0)), max);
}

// The weight of a state (or of a score) with maximum `max` in a state anchored at `anchor_point`; 0
// for an empty one.
template <class T>
TILEWISE_INLINE T weight(T max, T anchor_point, const ExponentUnit<T>& unit = ExponentUnit<T>()) {
  return exp2_of_product(max - anchor_point, unit);
}

// factor * value, but 0 for factor 0: the row of an empty state is selected out, never multiplied
// out.
template <class T>
TILEWISE_INLINE T combine(T factor, T value) {
  using L = Lane<T>;
  return select(factor == T(L(0)), T(L(0)), factor * value);
}

// a + b, the monoid's product. The caller merges the rows: out = combine(factor_a, out_a) +
// combine(factor_b, out_b).
template <class T>
struct Merged {
  SoftmaxState<T> state;
  T factor_a;
  T factor_b;
};
template <class T>
TILEWISE_INLINE Merged<T> merge(SoftmaxState<T> a, SoftmaxState<T> b,
                                const ExponentUnit<T>& unit = ExponentUnit<T>()) {
  const T max = maximum(a.max, b.max);
  const T factor_a = weight(a.max, anchor(max), unit);
  const T factor_b = weight(b.max, anchor(max), unit);
  // The sum of an empty state is 0: nothing to select, and a NaN stays, however small its factor.
  return {{max, factor_a * a.sum + factor_b * b.sum}, factor_a, factor_b};
}

// Closes a row, its maximum in natural units: out * scale is the attention output, lse the natural
// log-sum-exp. The sink (-inf: none) joins the denominator here, once. A row without keys gives
// scale 0 and lse = sink.
template <class T>
struct Finalised {
  T scale;
  T lse;
};
template <class T>
TILEWISE_INLINE Finalised<T> finalise(SoftmaxState<T> state, T sink) {
  if (sink == -Limits<T>::kInfinity) {
    // A sum over any score is at least 1, or NaN.
    if (state.sum == T(0)) return {T(0), -Limits<T>::kInfinity};
    return {T(1) / state.sum, multiply_add(log2(state.sum), T(kLn2), state.max)};
  }
  // In double: one factor scales the whole row, so that its error is every element's.
  const Merged<double> closed =
      merge(SoftmaxState<double>{state.max, state.sum}, SoftmaxState<double>{sink, 1});
  return {static_cast<T>(closed.factor_a / closed.state.sum),
          static_cast<T>(multiply_add(log2(closed.state.sum), kLn2, closed.state.max))};
}

// The probability of a score, recomputed in the backward pass: exp(score - lse), both in the units
// that `unit` says. A row without keys has lse = -inf and only masked scores; its probabilities are
// 0. No probability is above 1: at scores of 10^9 and more the rounding of lse would make it
// infinite.
template <class T>
TILEWISE_INLINE T probability(T score, T lse, const ExponentUnit<T>& unit = ExponentUnit<T>()) {
  using L = Lane<T>;
  return exp2_of_product(-maximum(T(L(0)), anchor(lse) - score), unit);  // a NaN stays
}

}  // namespace tilewise::math
