// The score of a query and a key, and its derivative: scale * q.k, then softcap, then bias, then
// ALiBi, then the mask (math/mask_rule.h). T is one lane or many.
#pragma once

#include "math/exp2.h"

namespace tilewise::math {

// Returns c * tanh(score / c).
template <class T>
TILEWISE_INLINE T softcapped(T score, T cap) {
  return cap * tanh(score / cap);
}

// Returns d softcapped / d score, computed from the score before the cap: a saturated score has
// lost the information after it.
template <class T>
TILEWISE_INLINE T softcap_derivative(T score, T cap) {
  return tanh_derivative(score / cap);
}

// Returns the ALiBi term -slope * |i + d - j|, where `distance` = i + d - j.
template <class T>
TILEWISE_INLINE T alibi(T slope, T distance) {
  return -(slope * absolute(distance));
}

// Returns d alibi / d slope.
template <class T>
TILEWISE_INLINE T alibi_derivative(T distance) {
  return -absolute(distance);
}

// A masked score is replaced by -inf by selection, whatever value was there.
template <class M, class T>
TILEWISE_INLINE T masked(M visible, T score) {
  return select(visible, score, T(-Limits<Lane<T>>::kInfinity));
}

// Returns the gradient of a score before the factor of the softcap: dS = P * (dP - delta), where dP
// already contains the dropout factor. This is also the gradient of the bias. P = 0 gives 0 by
// selection, because dP of a masked key may hold anything.
template <class T>
TILEWISE_INLINE T score_gradient(T probability, T dprobability, T delta) {
  using L = Lane<T>;
  return select(probability == T(L(0)), T(L(0)), probability * (dprobability - delta));
}

}  // namespace tilewise::math
