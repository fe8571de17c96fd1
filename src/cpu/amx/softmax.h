// Online softmax with a lazy maximum, for a block of 32 keys x 32 queries on AMX, cut in slices
// that overlap with tile products.
//
// Probabilities are 74.5 * 2^((score - anchor) * scale_log2). The anchor is the maximum of the
// first block in which a row sees a key. No maximum is computed after that. If the sum of a block
// shows that a lane has overflowed kRescaleThreshold, the anchor of that lane moves to the block's
// maximum: all sums so far are rescaled once, and the block is recomputed. Whether a lane moves
// depends on its own scores alone.
#pragma once

#include "cpu/amx/exp2.h"
#include "cpu/amx/rounding.h"
#include "cpu/amx/shape.h"
#include "math/softmax_state.h"

#if TILEWISE_HAS_AMX

namespace tilewise::cpu::TILEWISE_TARGET {

// The largest sum of a block without an overflowed lane.
inline constexpr float kMaxBlockSum = kProbScale * kBlockKeys * kRescaleThreshold;

// The state of a panel.
struct AmxState {
  float* anchor;  // (kAmxWidth), in the representation of the scores; -inf: no key seen yet
  float* sum;     // (kAmxWidth)
  float* out;     // (padded Dv, kAmxWidth)
};

// Scores of a block, and the anchors that are subtracted from their exponents.
struct Anchored {
  const float* scores;  // (kBlockKeys, kAmxWidth)
  Vec<float> low_anchor;
  Vec<float> high_anchor;
};

// A subset of the lanes of a panel.
struct PanelLanes {
  __mmask16 low;
  __mmask16 high;

  TILEWISE_INLINE bool any() const { return (low | high) != 0; }
};

// Turns a block of scores into probabilities, rounded and paired, and into their sums before
// rounding: 16 pairs of keys, in slices between tile products.
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
  // For a block without probabilities.
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
  // NaN has not overflowed: its row is NaN in any case.
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

// Sets the anchor of the rows that have seen no key yet to the maximum of the block.
TILEWISE_INLINE void init_anchors(const float* scores, float* anchor) {
  const Vec<float> none(-math::Limits<float>::kInfinity);
  for (int lane = 0; lane < kAmxWidth; lane += Vec<float>::kLanes) {
    const Vec<float> old = Vec<float>::load(anchor + lane);
    if (_mm512_cmp_ps_mask(__m512(old.v), __m512(none.v), _CMP_EQ_OQ) == 0) continue;
    select(old == none, block_maximum(scores + lane), old).store(anchor + lane);
  }
}

// The anchors of a panel. An exponent is one operation, score * scale_log2 - anchor * scale_log2,
// in which only the second product is rounded. Its error is one factor in all probabilities of a
// row, which cancels in the division by their sum. Below kMaxExponent the exponent is off by 2^-13
// at most, and the probability at the anchor is exact after it is rounded to bf16. Above
// kMaxExponent the difference of the scores is computed first, lane by lane, so that no bit of a
// row depends on its neighbours. If O is fp32, where the factor would show in a row of one key, all
// slices compute the differences first (kExact).
struct Anchors {
  float* values;       // (kAmxWidth), in the representation of the scores; -inf: no key seen yet
  float* differences;  // (kBlockKeys, kAmxWidth)
};
inline constexpr float kMaxExponent = 0x1p12f;  // in units of log 2

// The lanes above kMaxExponent, among them those that have seen no key yet. NaN counts as above.
TILEWISE_INLINE __mmask16 lanes_beyond_limit(Vec<float> product) {
  return _mm512_cmp_ps_mask(_mm512_abs_ps(__m512(product.v)), __m512(Vec<float>(kMaxExponent).v),
                            _CMP_NLT_UQ);
}

// Stores the differences of the lanes in `apart`, and the scores of the others, for 16 lanes of a
// block.
TILEWISE_INLINE void subtract_anchors(const float* scores, std::int64_t lane, __m512 anchor,
                                      __mmask16 apart, float* differences) {
  const __m512 difference = _mm512_maskz_mov_ps(apart, anchor);
  for (std::int64_t at = lane; at < kBlockKeys * kAmxWidth; at += kAmxWidth)
    _mm512_storeu_ps(differences + at, _mm512_sub_ps(_mm512_loadu_ps(scores + at), difference));
}
// For blocks where a row has seen no key yet, or is above kMaxExponent.
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

// Prepares a block for the slices.
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

// The data, besides the sums, that are rescaled if an anchor moves.
struct AnchorMove {
  std::int64_t value_rows;
  std::int64_t pair_rows;  // pairs of keys of the tile so far
  std::uint32_t* pairs;    // (pair_rows, kAmxWidth)
};

// Rescales the results of 16 lanes. Lanes whose anchor does not move must keep their bits.
// Multiplying by 1 is not enough: two terms that are rounded again may become two others.
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

// Recomputes a block in which some lanes have overflowed, with the block's maximum as their new
// anchor.
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
