// The inner product of two vectors of any storage type, for delta = rowsum(O * dO).
#pragma once

#include "cpu/simd/magnitude.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Returns true if any number of a row is denormal; those after the last whole register do not
// count.
template <class T, class S>
TILEWISE_INLINE bool has_denormals(const S* row, std::int64_t count) {
  const Vec<T> one(T(1));
  Mask<T> any = one < one;
  for (std::int64_t c = 0; c + Vec<T>::kLanes <= count; c += Vec<T>::kLanes)
    any = any | denormal_lanes(load_converted<T>(row + c));
  return any_lane(any);
}

// inner_product() of rows with denormal numbers, which are multiplied by a power of two. Returns a
// number that is not finite if the sum is too large for that.
template <class T, class A, class B>
__attribute__((noinline)) T lifted_inner_product(const A* a, const B* b, std::int64_t count) {
  const T lift = exact_power<T>(Exponents<T>::kLift);
  constexpr int kLanes = Vec<T>::kLanes;
  Vec<T> sums(T(0));
  std::int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    sums = sums + multiply_denormals(load_converted<T>(a + c), lift) *
                      multiply_denormals(load_converted<T>(b + c), lift);
  }
  T sum = T(0);
  for (; c < count; ++c) sum += math::load<T>(a[c]) * lift * (math::load<T>(b[c]) * lift);
  for (int lane = 0; lane < kLanes; ++lane) sum += sums.v[lane];
  return sum / lift / lift;
}

// Sum of a[c] * b[c]. It keeps kPartialSums interleaved sums and adds them up at the end, because
// each addition to a single sum would wait for the one before.
template <class T, class A, class B>
TILEWISE_INLINE T inner_product(const A* a, const B* b, std::int64_t count) {
  if (has_denormals<T>(a, count) || has_denormals<T>(b, count)) {
    const T lifted = lifted_inner_product<T>(a, b, count);
    if (math::is_finite(lifted)) return lifted;
  }
  constexpr int kPartialSums = 16;
  constexpr int kLanes = Vec<T>::kLanes;
  Vec<T> sums[kPartialSums / kLanes];
  for (Vec<T>& x : sums) x = Vec<T>(T(0));
  std::int64_t c = 0;
  for (; c + kPartialSums <= count; c += kPartialSums) {
    for (int i = 0; i < kPartialSums; i += kLanes) {
      sums[i / kLanes] =
          sums[i / kLanes] + load_converted<T>(a + c + i) * load_converted<T>(b + c + i);
    }
  }
  T partial[kPartialSums];
  for (int i = 0; i < kPartialSums; i += kLanes) sums[i / kLanes].store(partial + i);
  for (; c < count; ++c) partial[0] += math::load<T>(a[c]) * math::load<T>(b[c]);
  T sum = T(0);
  for (int i = 0; i < kPartialSums; ++i) sum += partial[i];
  return sum;
}

// Sum of a[c] * b[c] in the order of gemm.h, and with its roundings: one multiply-add after
// another.
template <class T, class A, class B>
T ordered_inner_product(const A* a, const B* b, std::int64_t count) {
  const auto sum_of = [&](T lift) {
    Vec<T> sum(T(0));
    for (std::int64_t c = 0; c < count; ++c)
      sum =
          multiply_add(Vec<T>(math::load<T>(a[c]) * lift), Vec<T>(math::load<T>(b[c]) * lift), sum);
    return sum.v[0] / lift / lift;
  };
  if (has_denormals<T>(a, count) || has_denormals<T>(b, count)) {
    const T lifted = sum_of(exact_power<T>(Exponents<T>::kLift));
    if (math::is_finite(lifted)) return lifted;
  }
  return sum_of(T(1));
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
