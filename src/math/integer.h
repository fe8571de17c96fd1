// Arithmetic on sizes and positions, usable in constant expressions, on the host and on the device.
#pragma once

#include <concepts>
#include <type_traits>

#include "math/config.h"

namespace tilewise::math {

template <std::integral A, std::integral B>
TILEWISE_INLINE constexpr std::common_type_t<A, B> min(A a, B b) {
  return a < b ? a : b;
}

template <std::integral A, std::integral B>
TILEWISE_INLINE constexpr std::common_type_t<A, B> max(A a, B b) {
  return a > b ? a : b;
}

template <std::integral X, std::integral Low, std::integral High>
TILEWISE_INLINE constexpr std::common_type_t<X, Low, High> clamp(X x, Low low, High high) {
  return x < low ? low : (x > high ? high : x);
}

// Returns a / b, rounded up. a >= 0, b > 0, and a + b - 1 must fit the type.
template <std::integral A, std::integral B>
TILEWISE_INLINE constexpr std::common_type_t<A, B> ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

// Returns the least multiple of `multiple` that is at least a, under the conditions of ceil_div().
template <std::integral A, std::integral B>
TILEWISE_INLINE constexpr std::common_type_t<A, B> round_up(A a, B multiple) {
  return ceil_div(a, multiple) * multiple;
}

}  // namespace tilewise::math
