// The softmax between products in bf16 pairs, one block of 32 keys x 32 queries at a time, cut in
// slices that fit under the tile products.
//
// Weights are 74.5 * 2^((score - reference) * unit). The reference is the maximum of the first
// block that a row sees. No maximum is taken after it: a sum of a block shows that a weight has
// grown beyond kSlack, and then the reference moves, what has been summed is scaled once and the
// block is weighed again. Which lane moves depends on its own scores alone.
#pragma once

#include "cpu/forward_parts.h"
#include "cpu/pair_operand.h"

#if TILEWISE_HAS_TILES

namespace tilewise::cpu::TILEWISE_TARGET {

// Registers to a panel: two make the 32 x 32 block that keeps all eight tile registers busy.
inline constexpr int kPanelRegisters = 2;
inline constexpr int kPairWidth = kPanelRegisters * Vec<float>::kLanes;
inline constexpr std::int64_t kPairStride = std::int64_t{kPairWidth} * 4;  // bytes
inline constexpr std::int64_t kBlockKeys = 32;
inline constexpr std::int64_t kBlockRows = 32;  // of the output
// Keys of a tile: the sums of the output are loaded and stored once for so many; the weights are 32
// KB.
inline constexpr std::int64_t kPairKeys = 512;
// Words from the weights of a tile to what their rounding left, where that is kept (fp16).
inline constexpr std::int64_t kLowWeights = kPairKeys / 2 * kPairWidth;
// Weights of up to 2^13 (a block's sum that stays below its bound may hold one of them) in a sum of
// bf16 products lose nothing, and the reference seldom moves.
inline constexpr float kSlack = 0x1p8f;

// What pair_exp2() gives for 0; a bf16 number, so that the largest weight of a row, at the
// reference, is exact.
inline constexpr float kUnitWeight = 74.5f;
inline constexpr float kMostBlockSum = kUnitWeight * kBlockKeys * kSlack;

// 74.5 * 2^x, relative error 4e-6: a quartic in f = x - floor(x), times 2^floor(x). The weights
// become bf16, and their fp32 sum must keep the LSE to 1e-5 in rows of few keys: a cubic (7.5e-5)
// would not. Its factor 74.5 makes the leading coefficient 1, and then two multiplications and five
// additions do (Knuth 1962; The Art of Computer Programming 4.6.4): additions have two ports under
// a tile product, multiplications one.  -inf gives 0, NaN stays.
TILEWISE_INLINE Vec<float> pair_exp2(Vec<float> x) {
  constexpr int kFloor = 9;  // x - floor(x), no exceptions
  const Vec<float> f(Vec<float>::Native(_mm512_reduce_ps(__m512(x.v), kFloor)));
  const Vec<float> y = multiply_add(f + Vec<float>(1.44632435f), f, Vec<float>(30.7515678f));
  const Vec<float> z = f + Vec<float>(-47.0663185f) + y;
  const Vec<float> series = multiply_add(z, y, Vec<float>(576.204163f));
  return Vec<float>(Vec<float>::Native(_mm512_scalef_ps(__m512(series.v), __m512(x.v))));
}

// a * b - c, rounded once
TILEWISE_INLINE Vec<float> multiply_subtract(Vec<float> a, Vec<float> b, Vec<float> c) {
  return Vec<float>(Vec<float>::Native(_mm512_fmsub_ps(__m512(a.v), __m512(b.v), __m512(c.v))));
}

// What a panel has summed up so far.
struct PairState {
  float* reference;  // (kPairWidth), in the units of the scores; -inf: nothing seen
  float* sum;        // (kPairWidth)
  float* out;        // (padded Dv, kPairWidth)
};

// Scores, and what is taken off their exponents.
struct Anchored {
  const float* scores;  // (kBlockKeys, kPairWidth)
  Vec<float> low_anchor;
  Vec<float> high_anchor;
};

// How much vector work goes with the products of the unit: `pairs` pairs of keys with one of
// `every` products; in how many terms weights and inputs are multiplied: one bf16, or two for fp16;
// whether weights must be exact in fp32 (see References).
struct SlicePlan {
  int pairs;
  int every;
  int terms;
  bool exact;
};

// Some of a panel's lanes.
struct LanesOfPanel {
  __mmask16 low;
  __mmask16 high;

  TILEWISE_INLINE bool any() const { return (low | high) != 0; }
};

// A block on its way from scores to weights, rounded and paired, and their sums before rounding:
// 16 pairs of keys, over the products of a block of scores.
template <SlicePlan kPlan>
class WeightSlices {
 public:
  static constexpr SlicePlan kSlices = kPlan;

  TILEWISE_INLINE explicit WeightSlices(Vec<float> unit) : unit_(unit) {}

  TILEWISE_INLINE Vec<float> unit() const { return unit_; }
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
      if (left_ != 0) weigh_keys();
    }
  }
  TILEWISE_INLINE void rest() {
    while (left_ != 0) weigh_keys();
  }
  TILEWISE_INLINE LanesOfPanel too_large() const { return {beyond(low_sum_), beyond(high_sum_)}; }
  TILEWISE_INLINE void add_sums(float* sum) const {
    (Vec<float>::load(sum) + low_sum_).store(sum);
    (Vec<float>::load(sum + Vec<float>::kLanes) + high_sum_).store(sum + Vec<float>::kLanes);
  }

 private:
  // NaN is not too large: its row is NaN whatever becomes of it.
  TILEWISE_INLINE static __mmask16 beyond(Vec<float> sum) {
    return _mm512_cmp_ps_mask(__m512(sum.v), __m512(Vec<float>(kMostBlockSum).v), _CMP_GT_OQ);
  }
  TILEWISE_INLINE Vec<float> exponent(const float* score, Vec<float> anchor) const {
    const Vec<float> x = Vec<float>::load(score);
    return kPlan.exact ? (x - anchor) * unit_ : multiply_subtract(x, unit_, anchor);
  }
  TILEWISE_INLINE Vec<float> weigh_half(Vec<float> anchor, int lane) {
    const Vec<float> even = pair_exp2(exponent(scores_ + lane, anchor));
    const Vec<float> odd = pair_exp2(exponent(scores_ + kPairWidth + lane, anchor));
    rounder_.store(even, odd, pairs_ + lane);
    if constexpr (kPlan.terms == 2) rounder_.store_rest(even, odd, pairs_ + kLowWeights + lane);
    return even + odd;
  }
  TILEWISE_INLINE void weigh_keys() {
    low_sum_ = low_sum_ + weigh_half(low_anchor_, 0);
    high_sum_ = high_sum_ + weigh_half(high_anchor_, Vec<float>::kLanes);
    scores_ += std::int64_t{2} * kPairWidth;
    pairs_ += kPairWidth;
    --left_;
  }

  const float* scores_ = nullptr;
  std::uint32_t* pairs_ = nullptr;
  std::int64_t left_ = 0;  // pairs of keys
  Vec<float> unit_;
  Vec<float> low_anchor_;
  Vec<float> high_anchor_;
  Vec<float> low_sum_;
  Vec<float> high_sum_;
  PairRounder rounder_;
};

TILEWISE_INLINE Vec<float> block_maximum(const float* scores) {
  Vec<float> max = Vec<float>::load(scores);
  for (std::int64_t j = 1; j < kBlockKeys; ++j)
    max = maximum(Vec<float>::load(scores + j * kPairWidth), max);
  return max;
}

// Gives the rows that have seen nothing, if any, their reference, the block's maximum.
TILEWISE_INLINE void settle_references(const float* scores, float* reference) {
  const Vec<float> none(-math::Limits<float>::kInfinity);
  for (int lane = 0; lane < kPairWidth; lane += Vec<float>::kLanes) {
    const Vec<float> old = Vec<float>::load(reference + lane);
    if (_mm512_cmp_ps_mask(__m512(old.v), __m512(none.v), _CMP_EQ_OQ) == 0) continue;
    select(old == none, block_maximum(scores + lane), old).store(reference + lane);
  }
}

// How a panel's scores meet their references. Exponents are one operation, score * unit -
// reference * unit, of which only the second product is rounded: one factor in all weights of a
// row, which the division by their sum takes out. Below kMostExponent the exponent is off by 2^-13
// at most, and the weight at the reference is exact once it is a bf16. Beyond, the difference of
// the scores comes first: lane by lane, so that no bit of a row depends on its neighbours. Where O
// in fp32 would show that factor in a row of one key, differences come first in all slices.
struct References {
  float* values;       // (kPairWidth), in the units of the scores; -inf: nothing seen
  float* differences;  // (kBlockKeys, kPairWidth)
};
inline constexpr float kMostExponent = 0x1p12f;  // in units of log 2

// Lanes beyond kMostExponent, those that have seen nothing among them. NaN is beyond.
TILEWISE_INLINE __mmask16 lanes_apart(Vec<float> product) {
  return _mm512_cmp_ps_mask(_mm512_abs_ps(__m512(product.v)), __m512(Vec<float>(kMostExponent).v),
                            _CMP_NLT_UQ);
}

// 16 lanes of a block: the differences of those in `apart`, the scores of the others.
TILEWISE_INLINE void subtract_references(const float* scores, std::int64_t lane, __m512 anchor,
                                         __mmask16 apart, float* differences) {
  const __m512 difference = _mm512_maskz_mov_ps(apart, anchor);
  for (std::int64_t at = lane; at < kBlockKeys * kPairWidth; at += kPairWidth)
    _mm512_storeu_ps(differences + at, _mm512_sub_ps(_mm512_loadu_ps(scores + at), difference));
}
// Where a row has seen nothing yet, or is beyond kMostExponent.
__attribute__((noinline)) inline Anchored anchor_unusual(Vec<float> unit, const float* scores,
                                                         const References& references) {
  constexpr std::int64_t kLanes = Vec<float>::kLanes;
  settle_references(scores, references.values);
  Vec<float> products[kPanelRegisters];
  __mmask16 apart[kPanelRegisters];
  for (int i = 0; i < kPanelRegisters; ++i) {
    products[i] = math::anchor(Vec<float>::load(references.values + i * kLanes)) * unit;
    apart[i] = lanes_apart(products[i]);
  }
  if ((apart[0] | apart[1]) == 0) return {scores, products[0], products[1]};
  for (int i = 0; i < kPanelRegisters; ++i) {
    const Vec<float> anchor = math::anchor(Vec<float>::load(references.values + i * kLanes));
    subtract_references(scores, i * kLanes, __m512(anchor.v), apart[i], references.differences);
    products[i].v = Vec<float>::Native(
        _mm512_maskz_mov_ps(static_cast<__mmask16>(~apart[i]), __m512(products[i].v)));
  }
  return {references.differences, products[0], products[1]};
}

// A block as slices take it.
template <bool kExact>
TILEWISE_INLINE Anchored anchor_block(Vec<float> unit, const float* scores,
                                      const References& references) {
  if constexpr (kExact) {
    settle_references(scores, references.values);
    return {scores, math::anchor(Vec<float>::load(references.values)),
            math::anchor(Vec<float>::load(references.values + Vec<float>::kLanes))};
  }
  const Vec<float> low = Vec<float>::load(references.values) * unit;
  const Vec<float> high = Vec<float>::load(references.values + Vec<float>::kLanes) * unit;
  if (__builtin_expect((lanes_apart(low) | lanes_apart(high)) != 0, 0))
    return anchor_unusual(unit, scores, references);
  return {scores, low, high};
}

// What a move of the reference has to scale besides the sums.
struct Move {
  std::int64_t value_rows;
  std::int64_t pair_rows;  // pairs of keys of the tile so far
  std::uint32_t* pairs;    // (pair_rows, kPairWidth)
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
    const PairRounder rounder;
    const __m512i words = _mm512_loadu_si512(at);
    Vec<float> even = PairRounder::lower_half(words);
    Vec<float> odd = PairRounder::upper_half(words);
    if constexpr (kTerms == 2) {
      const __m512i low = _mm512_loadu_si512(at + kLowWeights);
      even = even + PairRounder::lower_half(low);
      odd = odd + PairRounder::upper_half(low);
    }
    even = even * factor;
    odd = odd * factor;
    _mm512_mask_storeu_epi32(at, moves, rounder.words(even, odd));
    if constexpr (kTerms == 2)
      _mm512_mask_storeu_epi32(at + kLowWeights, moves,
                               rounder.words(rounder.rest(even), rounder.rest(odd)));
  }
};

// A block of which some lanes' weights have grown too large: moves their reference to the block's
// maximum and weighs the block again.
template <int kTerms, bool kExact>
__attribute__((noinline)) inline void weigh_again(Vec<float> unit, const float* scores,
                                                  LanesOfPanel too_large,
                                                  const References& references, PairState state,
                                                  Move move) {
  constexpr int kLanes = Vec<float>::kLanes;
  for (int lane = 0; lane < kPairWidth; lane += kLanes) {
    const __mmask16 moves = lane == 0 ? too_large.low : too_large.high;
    if (moves == 0) continue;
    const Vec<float> old = Vec<float>::load(state.reference + lane);
    const Vec<float> max = block_maximum(scores + lane);
    const LaneScale scale = {moves, math::exp2((old - max) * unit)};
    _mm512_mask_storeu_ps(state.reference + lane, moves, __m512(max.v));
    scale.numbers(state.sum + lane);
    for (std::int64_t r = 0; r < move.value_rows; ++r)
      scale.numbers(state.out + r * kPairWidth + lane);
    for (std::int64_t r = 0; r < move.pair_rows; ++r)
      scale.pairs<kTerms>(move.pairs + r * kPairWidth + lane);
  }
  WeightSlices<SlicePlan{1, 1, kTerms, kExact}> slices(unit);
  slices.begin(anchor_block<kExact>(unit, scores, references),
               move.pairs + move.pair_rows * kPairWidth);
  slices.rest();
  slices.add_sums(state.sum);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_TILES
