// The units of the forward pass: powers of two that keep P V away from denormal numbers, and its
// sums finite where V is so large that they would overflow before they are normalised.
#pragma once

#include "cpu/simd/magnitude.h"
#include "math/integer.h"
#include "math/scalar.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// The exponent that values may have, times their unit: then a sum over `keys` of them is finite,
// times probs of at most 1 and the factor of dropout.
template <class T>
TILEWISE_INLINE int value_room(const problem::Problem& problem, std::int64_t keys) {
  return Exponents<T>::kMost - exponent_above(keys) - exponent_above(1 / (1 - problem.dropout_p));
}

// The unit with which such a sum is finite for any finite values: they are below 2^(kMost + 2).
template <class T>
TILEWISE_INLINE T least_unit(int room) {
  return exact_power<T>(room - (Exponents<T>::kMost + 2));
}

// The power of two by which V of the first tile of a block is multiplied, so that neither it nor
// its products are denormal: then a multiply-add would take a hundred cycles. Later tiles keep it,
// except that it falls where the sum over all keys might otherwise not be finite. Outputs are
// divided by it when they are normalised.
//
// room: value_room()
template <class T>
TILEWISE_INLINE T value_unit(T before, T largest, int room) {
  constexpr int kMost = Exponents<T>::kMost;
  const int above = exponent_above(largest);
  const int lift = largest != T(0) && above < Exponents<T>::kSmall ? Exponents<T>::kLift - above
                                                                   : Exponents<T>::kLift;
  const int highest = math::min(kMost - kDivisionRoom, room - above);
  const T most = exact_power<T>(highest);
  if (before != T(0)) return most < before ? most : before;
  return exact_power<T>(math::min(lift, highest));
}

// The unit of products that flush denormals in any case. It is `before`, or less where a sum might
// not be finite.
template <class T>
TILEWISE_INLINE T lowered_unit(T before, T largest, int room) {
  const int highest = room - exponent_above(largest);
  return highest >= 0 ? before : math::minimum(before, exact_power<T>(highest));
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
