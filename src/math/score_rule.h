// The score of a query and a key, and its derivative: scale * q.k, then softcap, then bias, then
// ALiBi, then the mask (math/mask_rule.h). T is one lane or many.
#pragma once

#include "math/exp2.h"

namespace tilewise::math {

// c * tanh(score / c)
template <class T>
TILEWISE_INLINE T softcapped(T score, T cap) {
  return cap * tanh(score / cap);
}

// d softcapped / d score, from the score before the cap: at a saturated score the capped one has
// lost it.
template <class T>
TILEWISE_INLINE T softcap_derivative(T score, T cap) {
  return tanh_derivative(score / cap);
}

// ALiBi: -slope * |i + d - j|, for `distance` = i + d - j.
template <class T>
TILEWISE_INLINE T alibi(T slope, T distance) {
  return -(slope * absolute(distance));
}

// A masked score is selected out: -inf, whatever was there.
template <class M, class T>
TILEWISE_INLINE T masked(M visible, T score) {
  return select(visible, score, T(-Limits<Lane<T>>::kInfinity));
}

// Gradient of a score before the softcap's factor: dS = P * (dP - delta), with dP already holding
// the dropout's factor. It is also the gradient of the bias. P = 0 is selected out: a masked key's
// dP may hold anything.
template <class T>
TILEWISE_INLINE T score_gradient(T probability, T dprobability, T delta) {
  using L = Lane<T>;
  return select(probability == T(L(0)), T(L(0)), probability * (dprobability - delta));
}

}  // namespace tilewise::math
