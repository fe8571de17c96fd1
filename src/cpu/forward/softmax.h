// Online softmax on a tile of scores, with SIMD lanes = queries.
#pragma once

#include "cpu/simd/vector.h"
#include "math/softmax_state.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// The maximum of a column of registers and `start`, in four independent chains: a single chain
// would wait four cycles for each score.
template <class T, int kWidth>
TILEWISE_INLINE Vec<T> column_maximum(const T* column, std::int64_t rows, Vec<T> start) {
  Vec<T> chains[4] = {start, start, start, start};
  std::int64_t j = 0;
  for (; j + 4 <= rows; j += 4) {
    for (int i = 0; i < 4; ++i)
      chains[i] = maximum(Vec<T>::load(column + (j + i) * kWidth), chains[i]);
  }
  for (; j < rows; ++j) chains[0] = maximum(Vec<T>::load(column + j * kWidth), chains[0]);
  return maximum(maximum(chains[0], chains[1]), maximum(chains[2], chains[3]));
}

// Updates the state of a panel with a tile of scores, and turns the scores into unnormalised
// probabilities. rescale receives the factor by which the panel's output so far must be multiplied.
// The first kColumns registers of kWidth lanes are computed.
template <class T, int kColumns, int kWidth>
TILEWISE_INLINE void softmax_step(std::int64_t keys, math::ScaleLog2<Vec<T>> scale_log2, T* scores,
                                  T* max, T* sum, Vec<T>* rescale) {
  constexpr int kLanes = Vec<T>::kLanes;
  for (int n = 0; n < kColumns; ++n) {
    T* const column = scores + n * kLanes;
    const Vec<T> old_max = Vec<T>::load(max + n * kLanes);
    const Vec<T> new_max = column_maximum<T, kWidth>(column, keys, old_max);
    const Vec<T> anchor = math::anchor(new_max);
    rescale[n] = math::prob(old_max, anchor, scale_log2);
    Vec<T> total(T(0));  // of this tile only: short sums lose less
    for (std::int64_t j = 0; j < keys; ++j) {
      const Vec<T> prob = math::prob(Vec<T>::load(column + j * kWidth), anchor, scale_log2);
      prob.store(column + j * kWidth);
      total = total + prob;
    }
    new_max.store(max + n * kLanes);
    multiply_add(Vec<T>::load(sum + n * kLanes), rescale[n], total).store(sum + n * kLanes);
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
