// The inner product of two vectors of any storage type, for delta = rowsum(O * dO).
#pragma once

#include "cpu/simd/conversion.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Sum of a[c] * b[c]. It keeps kPartialSums interleaved sums and adds them up at the end, because
// each addition to a single sum would wait for the one before.
template <class T, class A, class B>
TILEWISE_INLINE T inner_product(const A* a, const B* b, std::int64_t count) {
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

}  // namespace tilewise::cpu::TILEWISE_TARGET
