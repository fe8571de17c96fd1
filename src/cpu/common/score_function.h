// The caller's score function on a tile of scores, and on the gradients of a tile
// (docs/semantics.md, "Score functions"). It gets the tile where it lies: one of its strides is 1,
// the other one kWidth.
#pragma once

#include "cpu/common/tile.h"
#include "problem/score_tile.h"

namespace tilewise::cpu::TILEWISE_TARGET {

template <class T, Lanes kLanesAre, int kWidth>
tilewise_score_tile score_tile(const HeadContext& context, const TileBounds& bounds) {
  tilewise_score_tile tile = problem::score_tile(
      *context.problem, context.sequence, context.head, rows_of(kLanesAre, bounds),
      keys_of(kLanesAre, bounds), sizeof(T) == 8 ? TILEWISE_FP64 : TILEWISE_FP32);
  (kLanesAre == Lanes::kQueries ? tile.key_stride : tile.row_stride) = kWidth;
  return tile;
}

// scores = function(scores). `before`, if given, receives the scores before it.
template <class T, Lanes kLanesAre, int kWidth>
void apply_score_function(const HeadContext& context, const TileBounds& bounds, T* scores,
                          T* before) {
  const tilewise_score_function& function = context.problem->score_function;
  if (before != nullptr)
    __builtin_memcpy(before, scores, static_cast<std::size_t>(bounds.t_count * kWidth) * sizeof(T));
  const tilewise_score_tile tile = score_tile<T, kLanesAre, kWidth>(context, bounds);
  function.forward(function.user_data, &tile, scores);
}

// Sets the scores before the function to 0 where the finished scores are masked, so that what a
// masked key holds does not reach the gradients that the function adds up.
template <class T, int kWidth>
void clear_masked_scores(const TileBounds& bounds, const T* scores, T* before) {
  const Vec<T> masked(-math::Limits<T>::kInfinity);
  for (std::int64_t at = 0; at < bounds.t_count * kWidth; at += Vec<T>::kLanes)
    select(Vec<T>::load(scores + at) == masked, Vec<T>(T(0)), Vec<T>::load(before + at))
        .store(before + at);
}

// The units of gradients: the function gets them multiplied by first * second, and its results are
// multiplied by a * b, which undoes that.
template <class T>
struct FunctionUnits {
  T first, second;
  T a, b;
};

// gradients = function's derivative (gradients). A gradient of 0, as that of a masked pair, stays 0
// by selection. given: (t_count, kWidth), overwritten
template <class T, Lanes kLanesAre, int kWidth>
void apply_score_function_derivative(const HeadContext& context, const TileBounds& bounds,
                                     const FunctionUnits<T>& units, const T* before, T* given,
                                     T* gradients) {
  const tilewise_score_function& function = context.problem->score_function;
  const std::int64_t size = bounds.t_count * kWidth;
  for (std::int64_t at = 0; at < size; at += Vec<T>::kLanes) {
    const Vec<T> gradient =
        Vec<T>::load(gradients + at) * Vec<T>(units.first) * Vec<T>(units.second);
    gradient.store(given + at);
    gradient.store(gradients + at);
  }
  const tilewise_score_tile tile = score_tile<T, kLanesAre, kWidth>(context, bounds);
  function.backward(function.user_data, &tile, before, gradients);
  const Vec<T> zero(T(0));
  for (std::int64_t at = 0; at < size; at += Vec<T>::kLanes) {
    const Vec<T> result = Vec<T>::load(gradients + at) * Vec<T>(units.a) * Vec<T>(units.b);
    select(Vec<T>::load(given + at) == zero, zero, result).store(gradients + at);
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
