// The softmax between products in bf16 pairs, one block of 32 keys x 32 queries at a time, cut in
// slices that fit under the tile products.
//
// Weights are 74.5 * 2^((score - reference) * unit). The reference is the maximum of the first
// block that a row sees. No maximum is taken after it: a sum of a block shows that a weight has
// grown beyond kRescaleThreshold, and then the reference moves, what has been summed is scaled once
// and the block is weighed again. Which lane moves depends on its own scores alone.
#pragma once

#include "cpu/amx/exp2.h"
#include "cpu/amx/rounding.h"
#include "cpu/amx/shape.h"
#include "math/softmax_state.h"

#if TILEWISE_HAS_AMX

namespace tilewise::cpu::TILEWISE_TARGET {

// The largest sum of a block without an overflowed lane.
inline constexpr float kMaxBlockSum = kProbScale * kBlockKeys * kRescaleThreshold;

// What a panel has summed up so far.
struct AmxState {
  float* anchor;  // (kAmxWidth), in the units of the scores; -inf: nothing seen
  float* sum;     // (kAmxWidth)
  float* out;     // (padded Dv, kAmxWidth)
};

// Scores, and what is taken off their exponents.
struct Anchored {
  const float* scores;  // (kBlockKeys, kAmxWidth)
  Vec<float> low_anchor;
  Vec<float> high_anchor;
};

// Some of a panel's lanes.
struct PanelLanes {
  __mmask16 low;
  __mmask16 high;

  TILEWISE_INLINE bool any() const { return (low | high) != 0; }
};

// A block on its way from scores to weights, rounded and paired, and their sums before rounding:
// 16 pairs of keys, over the products of a block of scores.
template <SlicePlan kPlan>
class ProbSlices {
 public:
  static constexpr SlicePlan kSlices = kPlan;

  TILEWISE_INLINE explicit ProbSlices(Vec<float> scale_log2) : scale_log2_(scale_log2) {}

  TILEWISE_INLINE Vec<float> scale_log2() const { return scale_log2_; }
  TILEWISE_INLINE void begin(const Anchored& block, std::uint32_t* pairs) {
    scores_ = block.scores;
    pairs_ = pairs;
    left_ = kBlockKeys / 2;
    low_anchor_ = block.low_anchor;
    high_anchor_ = block.high_anchor;
    low_sum_ = high_sum_ = Vec<float>(0.0f);
  }
  // A block without weights.
  TILEWISE_INLINE void skip() { low_sum_ = high_sum_ = Vec<float>(0.0f); }
  template <int kProduct>
  TILEWISE_INLINE void slice() {
    if constexpr (kProduct % kPlan.every != 0) return;
#pragma GCC unroll 4
    for (int i = 0; i < kPlan.pairs; ++i) {
      if (left_ != 0) exp2_keys();
    }
  }
  TILEWISE_INLINE void drain() {
    while (left_ != 0) exp2_keys();
  }
  TILEWISE_INLINE PanelLanes overflowed() const { return {beyond(low_sum_), beyond(high_sum_)}; }
  TILEWISE_INLINE void add_sums(float* sum) const {
    (Vec<float>::load(sum) + low_sum_).store(sum);
    (Vec<float>::load(sum + Vec<float>::kLanes) + high_sum_).store(sum + Vec<float>::kLanes);
  }

 private:
  // NaN is not too large: its row is NaN whatever becomes of it.
  TILEWISE_INLINE static __mmask16 beyond(Vec<float> sum) {
    return _mm512_cmp_ps_mask(__m512(sum.v), __m512(Vec<float>(kMaxBlockSum).v), _CMP_GT_OQ);
  }
  TILEWISE_INLINE Vec<float> exponent(const float* score, Vec<float> anchor) const {
    const Vec<float> x = Vec<float>::load(score);
    return kPlan.exact ? (x - anchor) * scale_log2_ : multiply_subtract(x, scale_log2_, anchor);
  }
  TILEWISE_INLINE Vec<float> exp2_half(Vec<float> anchor, int lane) {
    const Vec<float> even = amx_exp2(exponent(scores_ + lane, anchor));
    const Vec<float> odd = amx_exp2(exponent(scores_ + kAmxWidth + lane, anchor));
    rounder_.store(even, odd, pairs_ + lane);
    if constexpr (kPlan.terms == 2) rounder_.store_remainder(even, odd, pairs_ + kLowProbs + lane);
    return even + odd;
  }
  TILEWISE_INLINE void exp2_keys() {
    low_sum_ = low_sum_ + exp2_half(low_anchor_, 0);
    high_sum_ = high_sum_ + exp2_half(high_anchor_, Vec<float>::kLanes);
    scores_ += std::int64_t{2} * kAmxWidth;
    pairs_ += kAmxWidth;
    --left_;
  }

  const float* scores_ = nullptr;
  std::uint32_t* pairs_ = nullptr;
  std::int64_t left_ = 0;  // pairs of keys
  Vec<float> scale_log2_;
  Vec<float> low_anchor_;
  Vec<float> high_anchor_;
  Vec<float> low_sum_;
  Vec<float> high_sum_;
  Bf16Rounder rounder_;
};

TILEWISE_INLINE Vec<float> block_maximum(const float* scores) {
  Vec<float> max = Vec<float>::load(scores);
  for (std::int64_t j = 1; j < kBlockKeys; ++j)
    max = maximum(Vec<float>::load(scores + j * kAmxWidth), max);
  return max;
}

// Gives the rows that have seen nothing, if any, their reference, the block's maximum.
TILEWISE_INLINE void init_anchors(const float* scores, float* anchor) {
  const Vec<float> none(-math::Limits<float>::kInfinity);
  for (int lane = 0; lane < kAmxWidth; lane += Vec<float>::kLanes) {
    const Vec<float> old = Vec<float>::load(anchor + lane);
    if (_mm512_cmp_ps_mask(__m512(old.v), __m512(none.v), _CMP_EQ_OQ) == 0) continue;
    select(old == none, block_maximum(scores + lane), old).store(anchor + lane);
  }
}

// How a panel's scores meet their references. Exponents are one operation, score * unit -
// reference * unit, of which only the second product is rounded: one factor in all weights of a
// row, which the division by their sum takes out. Below kMaxExponent the exponent is off by 2^-13
// at most, and the weight at the reference is exact once it is a bf16. Beyond, the difference of
// the scores comes first: lane by lane, so that no bit of a row depends on its neighbours. Where O
// in fp32 would show that factor in a row of one key, differences come first in all slices.
struct Anchors {
  float* values;       // (kAmxWidth), in the units of the scores; -inf: nothing seen
  float* differences;  // (kBlockKeys, kAmxWidth)
};
inline constexpr float kMaxExponent = 0x1p12f;  // in units of log 2

// Lanes beyond kMaxExponent, those that have seen nothing among them. NaN is beyond.
TILEWISE_INLINE __mmask16 lanes_beyond_limit(Vec<float> product) {
  return _mm512_cmp_ps_mask(_mm512_abs_ps(__m512(product.v)), __m512(Vec<float>(kMaxExponent).v),
                            _CMP_NLT_UQ);
}

// 16 lanes of a block: the differences of those in `apart`, the scores of the others.
TILEWISE_INLINE void subtract_anchors(const float* scores, std::int64_t lane, __m512 anchor,
                                      __mmask16 apart, float* differences) {
  const __m512 difference = _mm512_maskz_mov_ps(apart, anchor);
  for (std::int64_t at = lane; at < kBlockKeys * kAmxWidth; at += kAmxWidth)
    _mm512_storeu_ps(differences + at, _mm512_sub_ps(_mm512_loadu_ps(scores + at), difference));
}
// Where a row has seen nothing yet, or is beyond kMaxExponent.
__attribute__((noinline)) inline Anchored anchor_block_rare(Vec<float> scale_log2,
                                                            const float* scores,
                                                            const Anchors& anchors) {
  constexpr std::int64_t kLanes = Vec<float>::kLanes;
  init_anchors(scores, anchors.values);
  Vec<float> products[kPanelRegisters];
  __mmask16 apart[kPanelRegisters];
  for (int i = 0; i < kPanelRegisters; ++i) {
    products[i] = math::anchor(Vec<float>::load(anchors.values + i * kLanes)) * scale_log2;
    apart[i] = lanes_beyond_limit(products[i]);
  }
  if ((apart[0] | apart[1]) == 0) return {scores, products[0], products[1]};
  for (int i = 0; i < kPanelRegisters; ++i) {
    const Vec<float> anchor = math::anchor(Vec<float>::load(anchors.values + i * kLanes));
    subtract_anchors(scores, i * kLanes, __m512(anchor.v), apart[i], anchors.differences);
    products[i].v = Vec<float>::Native(
        _mm512_maskz_mov_ps(static_cast<__mmask16>(~apart[i]), __m512(products[i].v)));
  }
  return {anchors.differences, products[0], products[1]};
}

// A block as slices take it.
template <bool kExact>
TILEWISE_INLINE Anchored anchor_block(Vec<float> scale_log2, const float* scores,
                                      const Anchors& anchors) {
  if constexpr (kExact) {
    init_anchors(scores, anchors.values);
    return {scores, math::anchor(Vec<float>::load(anchors.values)),
            math::anchor(Vec<float>::load(anchors.values + Vec<float>::kLanes))};
  }
  const Vec<float> low = Vec<float>::load(anchors.values) * scale_log2;
  const Vec<float> high = Vec<float>::load(anchors.values + Vec<float>::kLanes) * scale_log2;
  if (__builtin_expect((lanes_beyond_limit(low) | lanes_beyond_limit(high)) != 0, 0))
    return anchor_block_rare(scale_log2, scores, anchors);
  return {scores, low, high};
}

// What a move of the reference has to scale besides the sums.
struct AnchorMove {
  std::int64_t value_rows;
  std::int64_t pair_rows;  // pairs of keys of the tile so far
  std::uint32_t* pairs;    // (pair_rows, kAmxWidth)
};

// Scales what 16 lanes have summed up. Those that do not move keep their bits, whatever becomes of
// numbers times 1: two terms, rounded again, may be another two.
struct LaneScale {
  __mmask16 moves;
  Vec<float> factor;

  TILEWISE_INLINE void numbers(float* at) const {
    _mm512_mask_storeu_ps(at, moves, __m512((Vec<float>::load(at) * factor).v));
  }
  template <int kTerms>
  TILEWISE_INLINE void pairs(std::uint32_t* at) const {
    const Bf16Rounder rounder;
    const __m512i words = _mm512_loadu_si512(at);
    Vec<float> even = Bf16Rounder::lower_half(words);
    Vec<float> odd = Bf16Rounder::upper_half(words);
    if constexpr (kTerms == 2) {
      const __m512i low = _mm512_loadu_si512(at + kLowProbs);
      even = even + Bf16Rounder::lower_half(low);
      odd = odd + Bf16Rounder::upper_half(low);
    }
    even = even * factor;
    odd = odd * factor;
    _mm512_mask_storeu_epi32(at, moves, rounder.words(even, odd));
    if constexpr (kTerms == 2)
      _mm512_mask_storeu_epi32(at + kLowProbs, moves,
                               rounder.words(rounder.remainder(even), rounder.remainder(odd)));
  }
};

// A block of which some lanes' weights have grown too large: moves their reference to the block's
// maximum and weighs the block again.
template <int kTerms, bool kExact>
__attribute__((noinline)) inline void recompute_with_new_max(Vec<float> scale_log2,
                                                             const float* scores,
                                                             PanelLanes overflowed,
                                                             const Anchors& anchors, AmxState state,
                                                             AnchorMove move) {
  constexpr int kLanes = Vec<float>::kLanes;
  for (int lane = 0; lane < kAmxWidth; lane += kLanes) {
    const __mmask16 moves = lane == 0 ? overflowed.low : overflowed.high;
    if (moves == 0) continue;
    const Vec<float> old = Vec<float>::load(state.anchor + lane);
    const Vec<float> max = block_maximum(scores + lane);
    const LaneScale scale = {moves, math::exp2((old - max) * scale_log2)};
    _mm512_mask_storeu_ps(state.anchor + lane, moves, __m512(max.v));
    scale.numbers(state.sum + lane);
    for (std::int64_t r = 0; r < move.value_rows; ++r)
      scale.numbers(state.out + r * kAmxWidth + lane);
    for (std::int64_t r = 0; r < move.pair_rows; ++r)
      scale.pairs<kTerms>(move.pairs + r * kAmxWidth + lane);
  }
  ProbSlices<SlicePlan{1, 1, kTerms, kExact}> slices(scale_log2);
  slices.begin(anchor_block<kExact>(scale_log2, scores, anchors),
               move.pairs + move.pair_rows * kAmxWidth);
  slices.drain();
  slices.add_sums(state.sum);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AMX
