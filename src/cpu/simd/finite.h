// Detection of NaN and infinity. Every test rests on x - x, which is 0 for a finite x and NaN for
// any other.
#pragma once

#include "cpu/simd/conversion.h"
#include "math/number.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Returns true if the first `lanes` lanes of all `count` rows of a panel are finite.
template <class T, int kWidth>
bool all_finite(const T* panel, std::int64_t count, std::int64_t lanes) {
  T difference[kWidth] = {};  // one sum a lane, so that the loop runs in registers
  for (std::int64_t r = 0; r < count; ++r) {
    for (int lane = 0; lane < kWidth; lane += Vec<T>::kLanes) {
      const Vec<T> x = Vec<T>::load(panel + r * kWidth + lane);
      (Vec<T>::load(difference + lane) + (x - x)).store(difference + lane);
    }
  }
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    if (difference[lane] != T(0)) return false;
  }
  return true;
}

// Returns true if all numbers of a row are finite, which may be stored in another type.
template <class T, class S>
TILEWISE_INLINE bool row_is_finite(const S* row, std::int64_t width) {
  Vec<T> difference(T(0));
  std::int64_t c = 0;
  for (; c + Vec<T>::kLanes <= width; c += Vec<T>::kLanes) {
    const Vec<T> x = load_converted<T>(row + c);
    difference = difference + (x - x);
  }
  T sum = T(0);
  for (int lane = 0; lane < Vec<T>::kLanes; ++lane) sum += difference.v[lane];
  for (; c < width; ++c) sum += math::load<T>(row[c]) - math::load<T>(row[c]);
  return sum == T(0);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
