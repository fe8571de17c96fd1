// A row of K, V or Q in whole registers, without masks: the last register begins kLanes columns
// before the end of the row. The columns that it repeats are taken out of the sum (scores), or are
// stored in a space of their own (outputs).
#pragma once

#include "cpu/simd/vector.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// A row of `width` columns.
template <class T>
struct Padded {
  static constexpr std::int64_t kLanes = Vec<T>::kLanes;
  std::int64_t width;  // at least one register

  TILEWISE_INLINE std::int64_t whole() const { return width / kLanes * kLanes; }
  TILEWISE_INLINE bool has_tail() const { return width % kLanes != 0; }
  TILEWISE_INLINE std::int64_t size() const { return math::round_up(width, kLanes); }
  // The lanes of the last register that the register before it does not hold.
  TILEWISE_INLINE Mask<T> new_lanes() const {
    return Vec<T>(static_cast<T>(size() - width)) <= Vec<T>::iota();
  }
};

template <class T>
TILEWISE_INLINE Padded<T> padded(std::int64_t width) {
  return {math::max(width, Vec<T>::kLanes)};
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
