// One block of 32 queries x 32 keys of the backward pass in bf16 pairs, between its products: from
// scores and dP to P and dS, in one bf16 or the sum of two (fp16), as the operands of the products
// after it. Lanes are keys.
//
// Where every query sees every key and products are the scores, in slices under the tile products;
// else by the steps of backward.h, on the same arrays.
#pragma once

#include "cpu/backward.h"
#include "cpu/pair_odd.h"

#if TILEWISE_HAS_TILES

namespace tilewise::cpu::TILEWISE_TARGET {

inline constexpr std::int64_t kBlockQueries = 32;
// Words from a block's P or dS in pairs to what their rounding left, where that is kept.
inline constexpr std::int64_t kLowPairs = kBlockQueries / 2 * kPairWidth;

// Where a block is, and where its P and dS go.
struct GradientBlock {
  float* scores;                  // (kBlockQueries, kPairWidth)
  float* dprobs;                  // (kBlockQueries, kPairWidth)
  const float* exponents;         // (kBlockQueries): see usual_probability()
  const float* delta;             // (kBlockQueries)
  std::uint32_t* prob_pairs;      // (terms, kBlockQueries / 2, kPairWidth): words of two queries
  std::uint32_t* gradient_pairs;  // (terms, kBlockQueries / 2, kPairWidth)
  std::uint32_t* gradient_rows;   // two tiles of 16 queries, words of keys n and n + 16, per term
  std::int64_t tiles_apart;       // words from one to the other
};

// Two queries x 32 keys of P and dS.
struct QueryPair {
  Vec<float> even[2];
  Vec<float> odd[2];
};

// A score of a block where exponents are usual (load_tile_statistics()). One term: `exponent` is
// LSE in units of log 2 and log2(kUnitWeight), and the probability is right to 4e-6. Two: it is
// LSE, and the probability is that of all other kernels.
template <int kTerms>
TILEWISE_INLINE Vec<float> usual_probability(Vec<float> score, Vec<float> exponent,
                                             const math::ExponentUnit<Vec<float>>& unit) {
  if constexpr (kTerms == 2) return math::probability(score, exponent, unit);
  return pair_exp2(multiply_subtract(score, unit.factor, exponent));
}

// kPlan: pairs of queries to go with the products. A block has 16.
template <SlicePlan kPlan>
class GradientSlices {
 public:
  static constexpr int kTerms = kPlan.terms;

  TILEWISE_INLINE explicit GradientSlices(const math::ExponentUnit<Vec<float>>& unit)
      : unit_(unit) {}

  TILEWISE_INLINE void begin(const GradientBlock& block) {
    to_ = block;
    left_ = kBlockQueries / 2;
  }
  template <int kProduct>
  TILEWISE_INLINE void slice() {
    if constexpr (kProduct % kPlan.every != 0) return;
#pragma GCC unroll 2
    for (int i = 0; i < kPlan.pairs; ++i) {
      if (left_ != 0) take_queries();
    }
  }
  TILEWISE_INLINE void rest() {
    while (left_ != 0) take_queries();
  }
  // For P and dS that are made already.
  TILEWISE_INLINE void store(const QueryPair& probs, const QueryPair& gradients) {
    store_term(probs, gradients, 0);
    if constexpr (kTerms == 2) store_term(rest_of(probs), rest_of(gradients), 1);
    to_.scores += std::int64_t{2} * kPairWidth;
    to_.dprobs += std::int64_t{2} * kPairWidth;
    to_.exponents += 2;
    to_.delta += 2;
    to_.prob_pairs += kPairWidth;
    to_.gradient_pairs += kPairWidth;
    to_.gradient_rows += kTileDepth;  // two rows of 16 words
    --left_;
    if (left_ == kBlockQueries / 4) to_.gradient_rows += to_.tiles_apart - kTileElements / 2;
  }

 private:
  TILEWISE_INLINE void take_queries() {
    const Vec<float> even_exponent(to_.exponents[0]);
    const Vec<float> odd_exponent(to_.exponents[1]);
    const Vec<float> even_delta(to_.delta[0]);
    const Vec<float> odd_delta(to_.delta[1]);
    QueryPair probs;
    QueryPair gradients;
#pragma GCC unroll 2
    for (int x = 0; x < 2; ++x) {
      const std::int64_t even = std::int64_t{x} * Vec<float>::kLanes;
      const std::int64_t odd = even + kPairWidth;
      probs.even[x] =
          usual_probability<kTerms>(Vec<float>::load(to_.scores + even), even_exponent, unit_);
      probs.odd[x] =
          usual_probability<kTerms>(Vec<float>::load(to_.scores + odd), odd_exponent, unit_);
      gradients.even[x] = probs.even[x] * (Vec<float>::load(to_.dprobs + even) - even_delta);
      gradients.odd[x] = probs.odd[x] * (Vec<float>::load(to_.dprobs + odd) - odd_delta);
    }
    store(probs, gradients);
  }
  TILEWISE_INLINE QueryPair rest_of(const QueryPair& x) const {
    return {{rounder_.rest(x.even[0]), rounder_.rest(x.even[1])},
            {rounder_.rest(x.odd[0]), rounder_.rest(x.odd[1])}};
  }
  TILEWISE_INLINE void store_term(const QueryPair& probs, const QueryPair& gradients,
                                  std::int64_t term) {
    const std::int64_t high = Vec<float>::kLanes;
    std::uint32_t* const prob_pairs = to_.prob_pairs + term * kLowPairs;
    std::uint32_t* const pairs = to_.gradient_pairs + term * kLowPairs;
    std::uint32_t* const rows = to_.gradient_rows + term * kTileElements / 2;
    rounder_.store(probs.even[0], probs.odd[0], prob_pairs);
    rounder_.store(probs.even[1], probs.odd[1], prob_pairs + high);
    const __m512i even = rounder_.rounded(gradients.even[0]);
    const __m512i odd = rounder_.rounded(gradients.odd[0]);
    const __m512i high_even = rounder_.rounded(gradients.even[1]);
    const __m512i high_odd = rounder_.rounded(gradients.odd[1]);
    _mm512_storeu_si512(pairs, rounder_.joined(even, odd));
    _mm512_storeu_si512(pairs + high, rounder_.joined(high_even, high_odd));
    _mm512_storeu_si512(rows, rounder_.joined(even, high_even));
    _mm512_storeu_si512(rows + kTileDepth / 2, rounder_.joined(odd, high_odd));
  }

  math::ExponentUnit<Vec<float>> unit_;
  GradientBlock to_ = {};
  std::int64_t left_ = 0;  // pairs of queries
  PairRounder rounder_;
};

// Rounding by integer addition would carry a NaN of all ones into zero.
TILEWISE_INLINE Vec<float> short_nan(const float* from) {
  const __m512 x = _mm512_loadu_ps(from);
  return Vec<float>(Vec<float>::Native(_mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                                                          _mm512_set1_ps(__builtin_nanf("")))));
}

// The block by the score rule, the mask and dropout.  scratch: its lse and delta start at the
// frame's first row; odd_queries: some may not be finite
template <int kTerms>
__attribute__((noinline)) inline void finish_gradients(const HeadContext& context,
                                                       const Frame& frame, GradientBlock block,
                                                       bool odd_queries,
                                                       GradientScratch<float> scratch) {
  const Problem& problem = *context.problem;
  scratch.tile.probs = block.scores;
  scratch.tile.gradients = block.dprobs;
  const TileClass tile_class = classify(context, Lanes::kKeys, frame);
  if (tile_class != TileClass::kEmpty) {
    if (kTerms == 2 && odd_queries) repeat_odd_scores<Lanes::kKeys>(context, frame, block.scores);
    finish_scores<float, Lanes::kKeys, kPairWidth>(context, frame, tile_class, scratch.mask,
                                                   block.scores, scratch.tile.derivative);
    if (problem.dropout_p > 0) {
      for (std::int64_t at = 0; at < kBlockQueries * kPairWidth; ++at) scratch.tile.keep[at] = 0;
      fill_dropout<float, Lanes::kKeys, kPairWidth>(
          context, frame, kept_factor<float>(*context.problem), scratch.tile.keep);
    }
    gradient_step<float, Lanes::kKeys, kPanelRegisters, kPairWidth>(problem, frame, scratch);
    if (problem.softcap > 0) apply_softcap_derivative<float, kPairWidth>(frame, scratch.tile);
  }
  for (std::int64_t t = 0; t < kBlockQueries; ++t) {
    const bool there = tile_class != TileClass::kEmpty && t < frame.t_count;
    for (std::int64_t lane = there ? frame.lane_count : 0; lane < kPairWidth; ++lane) {
      block.scores[t * kPairWidth + lane] = 0;
      block.dprobs[t * kPairWidth + lane] = 0;
    }
  }
  GradientSlices<SlicePlan{1, 1, kTerms, kTerms == 2}> slices(
      ScoreUnits<float>(problem).exponent());
  slices.begin(block);
  const auto rows = [](const float* at) {
    return QueryPair{{short_nan(at), short_nan(at + 16)},
                     {short_nan(at + kPairWidth), short_nan(at + kPairWidth + 16)}};
  };
  for (std::int64_t t = 0; t < kBlockQueries; t += 2)
    slices.store(rows(block.scores + t * kPairWidth), rows(block.dprobs + t * kPairWidth));
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_TILES
