// Sums and maxima over the lanes of a register.
#pragma once

#include <utility>

#include "cpu/simd/vector.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// One lane of the shuffle that selects the even (odd = 0) or the odd spans of a and b. A span is
// `span` neighbouring lanes. Within each run of `spans` spans the first half comes from a, the
// second from b.
constexpr int span_lane(int lanes, int lane, int span, int spans, int odd) {
  const int run = span * spans;
  const int number = lane % run / span;
  const int half = spans / 2;
  return (number < half ? 0 : lanes) + lane / run * run + (2 * (number % half) + odd) * span +
         lane % span;
}

// Sums of neighbouring spans: those of a, then those of b.
template <class T, int kSpan, int kSpans, int... kLane>
TILEWISE_INLINE Vec<T> add_spans(Vec<T> a, Vec<T> b, std::integer_sequence<int, kLane...>) {
  constexpr int kLanes = Vec<T>::kLanes;
  const Vec<T> even(
      __builtin_shufflevector(a.v, b.v, span_lane(kLanes, kLane, kSpan, kSpans, 0)...));
  const Vec<T> odd(
      __builtin_shufflevector(a.v, b.v, span_lane(kLanes, kLane, kSpan, kSpans, 1)...));
  return even + odd;
}

// Returns a register whose lane i is the sum of the lanes of sums[i]. kLanes registers go in, one
// comes out. It adds within 128 bits first, where a shuffle costs least, and then across them.
template <class T, int kSpan = 1, int kLeft = Vec<T>::kLanes>
TILEWISE_INLINE Vec<T> sum_lanes(const Vec<T>* sums) {
  constexpr int kLanes = Vec<T>::kLanes;
  constexpr int kNarrow = 16 / static_cast<int>(sizeof(T));  // lanes of 128 bits
  if constexpr (kLeft == 1) {
    return sums[0];
  } else {
    constexpr int kSpans = kSpan == 1 ? kNarrow : kLanes / kNarrow;
    constexpr bool kLastNarrow = kSpan == 1 && kLeft == 2 * (kLanes / kNarrow);
    Vec<T> half[kLeft / 2];
#pragma GCC unroll 8
    for (std::ptrdiff_t i = 0; i < kLeft / 2; ++i) {
      half[i] = add_spans<T, kSpan, kSpans>(sums[2 * i], sums[2 * i + 1],
                                            std::make_integer_sequence<int, kLanes>{});
    }
    constexpr int kNextSpan = kLastNarrow ? kNarrow : kSpan;
    return sum_lanes<T, kNextSpan, kLeft / 2>(half);
  }
}

template <class T, int kDistance, int... kLane>
TILEWISE_INLINE Vec<T> swap_lanes(Vec<T> a, std::integer_sequence<int, kLane...>) {
  return Vec<T>(__builtin_shufflevector(a.v, a.v, (kLane ^ kDistance)...));
}

// Returns the largest lane, in all lanes. No lane may be NaN.
template <class T, int kDistance = Vec<T>::kLanes / 2>
TILEWISE_INLINE Vec<T> largest_lane(Vec<T> a) {
  a = maximum(a, swap_lanes<T, kDistance>(a, std::make_integer_sequence<int, Vec<T>::kLanes>{}));
  if constexpr (kDistance > 1) return largest_lane<T, kDistance / 2>(a);
  return a;
}
template <class T, int kDistance = Vec<T>::kLanes / 2>
TILEWISE_INLINE Vec<T> sum_of_lanes(Vec<T> a) {
  a = a + swap_lanes<T, kDistance>(a, std::make_integer_sequence<int, Vec<T>::kLanes>{});
  if constexpr (kDistance > 1) return sum_of_lanes<T, kDistance / 2>(a);
  return a;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
