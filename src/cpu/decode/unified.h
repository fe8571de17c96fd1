// FlashDecoding++: splits whose anchor is phi (math/unified_maximum.h).
#pragma once

#include "cpu/common/score_mod.h"
#include "cpu/decode/block.h"
#include "cpu/decode/padded_row.h"
#include "math/unified_maximum.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Returns phi in the units of the scores; 0 if it is not finite.
template <class T>
TILEWISE_INLINE T phi_of_head(const Problem& problem, std::int64_t head) {
  const float phi = static_cast<const float*>(problem.phi.data)[problem.phi.offset(0, head, 0)];
  return math::is_finite(phi) ? static_cast<T>(phi) / ScoreScaling<T>(problem).factor : T(0);
}

// Returns whether the sum and the output of a row (out: padded) show that phi has served it.
template <class T>
bool is_safe_row(T sum, const T* out, std::int64_t size) {
  const Vec<T> largest(static_cast<T>(math::kLargestSafeOut));
  const Vec<T> smallest(static_cast<T>(math::kSmallestSafeOut));
  Mask<T> small_enough = largest == largest;
  Mask<T> large_enough = largest < smallest;
  for (std::int64_t c = 0; c < size; c += Vec<T>::kLanes) {
    const Vec<T> magnitude = absolute(Vec<T>::load(out + c));
    small_enough = small_enough & (magnitude <= largest);
    large_enough = large_enough | (smallest <= magnitude);
  }
  const Mask<T> too_large = select(small_enough, Vec<T>(T(0)), Vec<T>(T(1))) == Vec<T>(T(1));
  return math::is_safe_sum(sum) && !any_lane(too_large) && any_lane(large_enough);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
