// The softmax monoid. The state of a piece of a row is (max, sum, out): the running maximum of the
// scores, the sum of exp(score - max), and the sum of exp(score - max) * value row. Everything that
// Tilewise does with a row is a merge of such states: of single scores (online softmax), of key
// tiles (FlashAttention-1 and -2), of slices of a cache (Flash-Decoding), of the shards of other
// machines (Ring Attention).
//
// The exponential is computed by exp2: exp(a - b) = 2^((a - b) * log2(e)). The difference is taken
// first: it is exact where it matters, while scores of some hundreds, each multiplied by log2(e),
// would each carry a rounding error into the exponent. `scale_log2` is log2(e) for scores as the
// formula has them; a kernel that keeps scores unscaled (q.k alone) passes scale * log2(e), which
// must be positive. T is one lane or many. `out` stays with the caller (as a row, a register tile
// or a buffer); these functions return the factors that it needs.
#pragma once

#include "math/exp2.h"

namespace tilewise::math {

template <class T>
struct SoftmaxState {
  T max;  // -inf in the empty state, whose `out` may hold anything
  T sum;
};

template <class T>
TILEWISE_INLINE SoftmaxState<T> empty_state() {
  using L = Lane<T>;
  return {T(-Limits<L>::kInfinity), T(L(0))};
}

// Returns the anchor of a row's exponentials: its maximum, or 0 if the row has seen no key yet,
// which makes exp(-inf - anchor) = 0 instead of NaN.
template <class T>
TILEWISE_INLINE T anchor(T max) {
  using L = Lane<T>;
  return select(max == T(-Limits<L>::kInfinity), T(L(0)), max);
}

// Returns exp(score - anchor_point): the prob of a score, or, for the maximum of a state, the
// factor that rescales the state to that anchor. 0 for a score of -inf, and so for an empty state.
template <class T>
TILEWISE_INLINE T prob(T score, T anchor_point, const ScaleLog2<T>& scale_log2 = ScaleLog2<T>()) {
  return exp2_of_product(score - anchor_point, scale_log2);
}

// Returns factor * value, but 0 if the factor is 0: the row of an empty state may hold NaN, so it
// is removed by selection, not by multiplication.
template <class T>
TILEWISE_INLINE T combine(T factor, T value) {
  using L = Lane<T>;
  return select(factor == T(L(0)), T(L(0)), factor * value);
}

// merge() returns a + b, the product of the monoid. The caller merges the rows: out =
// combine(factor_a, out_a) + combine(factor_b, out_b).
template <class T>
struct Merged {
  SoftmaxState<T> state;
  T factor_a;
  T factor_b;
};
template <class T>
TILEWISE_INLINE Merged<T> merge(SoftmaxState<T> a, SoftmaxState<T> b,
                                const ScaleLog2<T>& scale_log2 = ScaleLog2<T>()) {
  const T max = maximum(a.max, b.max);
  const T factor_a = prob(a.max, anchor(max), scale_log2);
  const T factor_b = prob(b.max, anchor(max), scale_log2);
  // The sum of an empty state is 0, so nothing has to be selected here, and a NaN is kept however
  // small its factor.
  return {{max, factor_a * a.sum + factor_b * b.sum}, factor_a, factor_b};
}

// finalise() ends a row whose maximum is in natural units: out * scale is the attention output, lse
// the natural log-sum-exp. The sink (-inf: none) joins the denominator here, once. A row without
// keys gets scale 0 and lse = sink.
template <class T>
struct Finalised {
  T scale;
  T lse;
};
template <class T>
TILEWISE_INLINE Finalised<T> finalise(SoftmaxState<T> state, T sink) {
  if (sink == -Limits<T>::kInfinity) {
    // The sum of a row that has seen any score is at least 1, or NaN.
    if (state.sum == T(0)) return {T(0), -Limits<T>::kInfinity};
    return {T(1) / state.sum, multiply_add(log2(state.sum), T(kLn2), state.max)};
  }
  // This is computed in double, because one factor scales the whole row: its error enters every
  // element.
  const Merged<double> finalised =
      merge(SoftmaxState<double>{state.max, state.sum}, SoftmaxState<double>{sink, 1});
  return {static_cast<T>(finalised.factor_a / finalised.state.sum),
          static_cast<T>(multiply_add(log2(finalised.state.sum), kLn2, finalised.state.max))};
}

// Returns the state of a row whose keys so far gave the result (out, lse): the sum 1 at the maximum
// lse, whose row is `out` itself. lse = -inf gives the empty state.
template <class T>
TILEWISE_INLINE SoftmaxState<T> state_of_result(T lse) {
  return {lse, lse == -Limits<T>::kInfinity ? T(0) : T(1)};
}

// finalise_into() ends a row that has an earlier result (out, lse), of other keys: out_of_state *
// scale + out * kept is the output of all of them. The earlier row is read only if it is not empty
// (has_earlier), because an empty one may hold NaN. Without a key and a sink, scale is 0 and the
// earlier result is returned as it is.
template <class T>
struct Continued {
  T scale;
  T kept;
  T lse;
  bool has_earlier;
};
template <class T>
TILEWISE_INLINE Continued<T> finalise_into(T earlier_lse, SoftmaxState<T> state, T sink) {
  const bool has_earlier = !(earlier_lse == -Limits<T>::kInfinity);
  if (sink == -Limits<T>::kInfinity && state.sum == T(0))
    return {T(0), T(1), earlier_lse, has_earlier};
  // In double, as in finalise(): its factors scale whole rows.
  const SoftmaxState<double> own = {static_cast<double>(state.max), static_cast<double>(state.sum)};
  const Merged<double> keys = merge(own, state_of_result(static_cast<double>(earlier_lse)));
  const Merged<double> all = merge(keys.state, state_of_result(static_cast<double>(sink)));
  const double scale = all.factor_a / all.state.sum;
  return {static_cast<T>(keys.factor_a * scale), static_cast<T>(keys.factor_b * scale),
          static_cast<T>(multiply_add(log2(all.state.sum), kLn2, all.state.max)), has_earlier};
}

// Returns the probability of a score, recomputed in the backward pass: exp(score - lse), both in
// the units that `scale_log2` expects. A row without keys has lse = -inf and only masked scores;
// its probabilities are 0. No probability exceeds 1: at scores of 10^9 and more the rounding of lse
// would otherwise make it infinite.
template <class T>
TILEWISE_INLINE T probability(T score, T lse, const ScaleLog2<T>& scale_log2 = ScaleLog2<T>()) {
  using L = Lane<T>;
  return exp2_of_product(-maximum(T(L(0)), anchor(lse) - score), scale_log2);  // a NaN is kept
}

}  // namespace tilewise::math
