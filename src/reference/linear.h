// The few vector operations that the ladder consists of. Every sum has a fixed order.
#pragma once

#include <cstdint>
#include <cstring>

#include "math/scalar.h"

namespace tilewise::reference {

// A pack is sixteen bytes of numbers. Every target adds one pack at a time, so that sums have the
// same order on all of them.
template <class T>
struct Pack {
  typedef T Type __attribute__((vector_size(16)));
  static constexpr std::int64_t kSize = 16 / sizeof(T);

  static Type load(const T* from) {
    Type pack;
    std::memcpy(&pack, from, sizeof(pack));
    return pack;
  }
};

// Partial sums, each of one pack: several hide the latency of an addition.
inline constexpr std::int64_t kPartialSums = 4;

// Returns the sum of pack_term(i) over the packs of `count` elements, plus term(i) over the
// remaining elements.
template <class T, class PackTerm, class Term>
T sum_of(std::int64_t count, const PackTerm& pack_term, const Term& term) {
  constexpr std::int64_t kSize = Pack<T>::kSize;
  typename Pack<T>::Type sums[kPartialSums] = {};
  std::int64_t i = 0;
  for (; i + kPartialSums * kSize <= count; i += kPartialSums * kSize) {
    sums[0] += pack_term(i);
    sums[1] += pack_term(i + kSize);
    sums[2] += pack_term(i + 2 * kSize);
    sums[3] += pack_term(i + 3 * kSize);
  }
  for (; i + kSize <= count; i += kSize) sums[0] += pack_term(i);
  const typename Pack<T>::Type pack = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  T total = T(0);
  for (; i < count; ++i) total += term(i);
  for (std::int64_t lane = 0; lane < kSize; ++lane) total += pack[lane];
  return total;
}

// sum_i a[i] * b[i]
template <class T>
T dot(const T* a, const T* b, std::int64_t count) {
  return sum_of<T>(
      count, [&](std::int64_t i) { return Pack<T>::load(a + i) * Pack<T>::load(b + i); },
      [&](std::int64_t i) { return a[i] * b[i]; });
}

template <class T>
T sum(const T* a, std::int64_t count) {
  return sum_of<T>(
      count, [&](std::int64_t i) { return Pack<T>::load(a + i); },
      [&](std::int64_t i) { return a[i]; });
}

// y += factor * x
template <class Factor, class T, class Sum>
void add_scaled(Factor factor, const T* x, std::int64_t count, Sum* y) {
  for (std::int64_t i = 0; i < count; ++i) y[i] += factor * x[i];
}

// y = a * y + b * x
template <class T>
void blend(T a, T b, const T* x, std::int64_t count, T* y) {
  for (std::int64_t i = 0; i < count; ++i) y[i] = a * y[i] + b * x[i];
}

// y *= factor
template <class T>
void scale_row(T factor, std::int64_t count, T* y) {
  for (std::int64_t i = 0; i < count; ++i) y[i] *= factor;
}

// The largest finite |x[i]|
template <class T>
T largest_finite(const T* x, std::int64_t count) {
  T largest = T(0);
  for (std::int64_t i = 0; i < count; ++i) {
    if (math::is_finite(x[i])) largest = math::maximum(largest, math::absolute(x[i]));
  }
  return largest;
}

template <class T>
void set_zero(T* y, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) y[i] = T(0);
}

}  // namespace tilewise::reference
