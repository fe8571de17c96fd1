// Online softmax of decoding, one row of a block of scores at a time.
#pragma once

#include "cpu/common/dropout.h"
#include "cpu/common/non_finite.h"
#include "cpu/common/score_mod.h"
#include "cpu/decode/block.h"
#include "cpu/decode/lane_sums.h"
#include "cpu/simd/prefetch.h"
#include "math/softmax_state.h"
#include "math/unified_maximum.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Prefetch steps during the softmax of a row, which takes as long as products with so many cache
// lines.
inline constexpr int kSoftmaxSteps = 8;

// Adds the probs of a block to the sum of a row whose anchor is phi, in the place of its max
// (math/unified_maximum.h). No maximum is formed, and the output so far needs no factor.
template <class T>
TILEWISE_INLINE T unified_softmax_row(T* scores, const math::ScaleLog2<Vec<T>>& scale_log2, T phi,
                                      T* sum) {
  Vec<T> total(T(0));
#pragma GCC unroll 16
  for (int lane = 0; lane < kDecodeKeys; lane += Vec<T>::kLanes) {
    const Vec<T> prob = math::unified_prob(Vec<T>::load(scores + lane), Vec<T>(phi), scale_log2);
    prob.store(scores + lane);
    total = total + prob;
  }
  *sum += sum_of_lanes(total).v[0];
  return T(1);
}

// Updates the state of a row with the scores of a block, and turns them into unnormalised
// probabilities. Returns the factor by which the row's output so far must be multiplied.
template <class T>
TILEWISE_INLINE T softmax_row(T* scores, const math::ScaleLog2<Vec<T>>& scale_log2, T* max,
                              T* sum) {
  constexpr int kLanes = Vec<T>::kLanes;
  const Vec<T> old_max(*max);
  Vec<T> lanes_max = old_max;
#pragma GCC unroll 16
  for (int lane = 0; lane < kDecodeKeys; lane += kLanes)
    lanes_max = maximum(Vec<T>::load(scores + lane), lanes_max);
  const Vec<T> new_max = largest_lane(lanes_max);
  const Vec<T> anchor = math::anchor(new_max);
  const Vec<T> rescale = math::prob(old_max, anchor, scale_log2);
  Vec<T> total(T(0));  // of this block only: short sums lose less
#pragma GCC unroll 16
  for (int lane = 0; lane < kDecodeKeys; lane += kLanes) {
    const Vec<T> prob = math::prob(Vec<T>::load(scores + lane), anchor, scale_log2);
    prob.store(scores + lane);
    total = total + prob;
  }
  *max = new_max.v[0];
  *sum = multiply_add(Vec<T>(*sum), rescale, sum_of_lanes(total)).v[0];
  return rescale.v[0];
}

// Sets seen[j] = 1 where the score of a row is not masked, and 0 elsewhere. Returns true if none of
// the first `keys` scores is masked.
template <class T>
TILEWISE_INLINE bool record_seen_keys(std::int64_t keys, const T* scores, std::uint8_t* seen) {
  const Vec<T> masked(-math::Limits<T>::kInfinity);
  Mask<T> any = Vec<T>::load(scores) == masked;
#pragma GCC unroll 16
  for (int lane = Vec<T>::kLanes; lane < kDecodeKeys; lane += Vec<T>::kLanes)
    any = any | (Vec<T>::load(scores + lane) == masked);
  __builtin_memset(seen, 1, kDecodeKeys);
  if (!any_lane(any)) return true;
  bool whole = true;
  for (std::int64_t j = 0; j < keys; ++j) {
    seen[j] = scores[j] == -math::Limits<T>::kInfinity ? 0 : 1;
    whole = whole && seen[j] != 0;
  }
  return whole;
}

// Multiplies the probs of a block, which its sum already has, by a unit.
template <class T>
TILEWISE_INLINE void lower_probs(T unit, T* probs) {
  for (int lane = 0; lane < kDecodeKeys; lane += Vec<T>::kLanes)
    (Vec<T>::load(probs + lane) * Vec<T>(unit)).store(probs + lane);
}

// From products to probabilities, for the rows of one kv head. Returns true if all rows see all
// keys of the block. first_row: the first of them in the work item
template <class T, class Prefetch>
bool softmax_rows(const DecodeBlock& block, std::int64_t first_row, const DecodeScratch<T>& scratch,
                  Prefetch& prefetcher) {
  const Problem& problem = *block.context.problem;
  const TileBounds bounds = {block.first, block.keys, 0, block.queries};
  const TileClass tile_class = classify(block.context, Lanes::kKeys, bounds);
  const math::ScaleLog2<Vec<T>> scale_log2 = ScoreScaling<T>(problem).scale_log2();
  bool seen_whole = true;
  for (std::int64_t g = 0; g < block.group; ++g) {
    HeadContext context = block.context;
    context.head += first_row / block.queries + g;
    const std::int64_t at = first_row + g * block.queries;
    T* const scores = scratch.scores + at * kDecodeKeys;
    if (tile_class == TileClass::kEmpty) {
      for (std::int64_t i = 0; i < block.queries * kDecodeKeys; ++i)
        scores[i] = -math::Limits<T>::kInfinity;
    } else {
      apply_score_mod<T, Lanes::kKeys, kDecodeKeys>(context, bounds, tile_class, scratch.mask,
                                                    scores, {});
    }
    for (std::int64_t i = 0; i < block.queries; ++i) {
      for (std::int64_t lane = block.keys; lane < kDecodeKeys; ++lane)
        scores[i * kDecodeKeys + lane] = -math::Limits<T>::kInfinity;
    }
    for (std::int64_t i = 0; i < block.queries; ++i) {
      seen_whole = record_seen_keys(block.keys, scores + i * kDecodeKeys,
                                    scratch.seen + (at + i) * kDecodeKeys) &&
                   seen_whole;
      for (int step = 0; step < kSoftmaxSteps; ++step) prefetcher.step();
      T* const of_row = scores + i * kDecodeKeys;
      scratch.rescale[at + i] =
          scratch.at_phi[at + i] != 0
              ? unified_softmax_row(of_row, scale_log2, scratch.max[at + i], scratch.sum + at + i)
              : softmax_row(of_row, scale_log2, scratch.max + at + i, scratch.sum + at + i);
    }
    if (problem.dropout_p > 0) {
      fill_dropout<T, Lanes::kKeys, kDecodeKeys>(context, bounds, dropout_scale<T>(problem),
                                                 scratch.keep);
      for (std::int64_t i = 0; i < block.queries; ++i) {
        for (std::int64_t j = 0; j < block.keys; ++j)
          scores[i * kDecodeKeys + j] *= scratch.keep[i * kDecodeKeys + j];
      }
    }
  }
  if (__builtin_expect(*scratch.has_prob_units, 0)) {
    for (std::int64_t r = first_row; r < first_row + block.rows(); ++r)
      lower_probs(scratch.prob_unit[r], scratch.scores + r * kDecodeKeys);
  }
  return seen_whole;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
