// One block of 32 queries x 32 keys of the backward pass, between its tile products: scores and dP
// become P and dS, rounded to one bf16 or to the sum of two (fp16), as operands of the products
// after it. SIMD lanes are keys.
//
// Where every query sees every key and the products are the scores, the work is cut in slices that
// overlap with tile products. Otherwise it takes the steps of backward/recompute.h on the same
// arrays.
#pragma once

#include "cpu/amx/exp2.h"
#include "cpu/amx/non_finite.h"
#include "cpu/amx/rounding.h"
#include "cpu/amx/shape.h"
#include "cpu/backward/recompute.h"

#if TILEWISE_HAS_AMX

namespace tilewise::cpu::TILEWISE_TARGET {

inline constexpr std::int64_t kBlockQueries = 32;
// Distance, in words, from P or dS of a block in pairs to the low terms, where these are kept.
inline constexpr std::int64_t kLowPairs = kBlockQueries / 2 * kAmxWidth;

// The arrays of a block.
struct GradientBlock {
  float* scores;                  // (kBlockQueries, kAmxWidth)
  float* dprobs;                  // (kBlockQueries, kAmxWidth)
  const float* exponents;         // (kBlockQueries): see fast_probability()
  const float* delta;             // (kBlockQueries)
  std::uint32_t* prob_pairs;      // (terms, kBlockQueries / 2, kAmxWidth): words of two queries
  std::uint32_t* gradient_pairs;  // (terms, kBlockQueries / 2, kAmxWidth)
  std::uint32_t* gradient_rows;   // two tiles of 16 queries; words of keys n and n + 16; per term
  std::int64_t tiles_apart;       // words from one tile to the other
};

// P or dS of two queries x 32 keys.
struct QueryPair {
  Vec<float> even[2];
  Vec<float> odd[2];
};

// The probability of a score on the fast path (load_tile_statistics()). With one term, `exponent`
// is LSE in units of log 2, plus log2(kProbScale), and the relative error of the probability is
// 4e-6. With two terms, `exponent` is LSE, and the probability is that of all other kernels.
template <int kTerms>
TILEWISE_INLINE Vec<float> fast_probability(Vec<float> score, Vec<float> exponent,
                                            const math::ScaleLog2<Vec<float>>& scale_log2) {
  if constexpr (kTerms == 2) return math::probability(score, exponent, scale_log2);
  return amx_exp2(multiply_subtract(score, scale_log2.factor, exponent));
}

// The vector work of a block in slices. kPlan: pairs of queries per tile product; a block has 16
// pairs.
template <SlicePlan kPlan>
class GradientSlices {
 public:
  static constexpr int kTerms = kPlan.terms;

  TILEWISE_INLINE explicit GradientSlices(const math::ScaleLog2<Vec<float>>& scale_log2)
      : scale_log2_(scale_log2) {}

  TILEWISE_INLINE void begin(const GradientBlock& block) {
    to_ = block;
    left_ = kBlockQueries / 2;
  }
  template <int kProduct>
  TILEWISE_INLINE void slice() {
    if constexpr (kProduct % kPlan.every != 0) return;
#pragma GCC unroll 2
    for (int i = 0; i < kPlan.pairs; ++i) {
      if (left_ != 0) probs_of_queries();
    }
  }
  TILEWISE_INLINE void drain() {
    while (left_ != 0) probs_of_queries();
  }
  // Stores P and dS of two queries that have been computed.
  TILEWISE_INLINE void store(const QueryPair& probs, const QueryPair& gradients) {
    store_term(probs, gradients, 0);
    if constexpr (kTerms == 2) store_term(remainder_of(probs), remainder_of(gradients), 1);
    to_.scores += std::int64_t{2} * kAmxWidth;
    to_.dprobs += std::int64_t{2} * kAmxWidth;
    to_.exponents += 2;
    to_.delta += 2;
    to_.prob_pairs += kAmxWidth;
    to_.gradient_pairs += kAmxWidth;
    to_.gradient_rows += kTileDepth;  // two rows of 16 words
    --left_;
    if (left_ == kBlockQueries / 4) to_.gradient_rows += to_.tiles_apart - kTileElements / 2;
  }

 private:
  TILEWISE_INLINE void probs_of_queries() {
    const Vec<float> even_exponent(to_.exponents[0]);
    const Vec<float> odd_exponent(to_.exponents[1]);
    const Vec<float> even_delta(to_.delta[0]);
    const Vec<float> odd_delta(to_.delta[1]);
    QueryPair probs;
    QueryPair gradients;
#pragma GCC unroll 2
    for (int x = 0; x < 2; ++x) {
      const std::int64_t even = std::int64_t{x} * Vec<float>::kLanes;
      const std::int64_t odd = even + kAmxWidth;
      probs.even[x] =
          fast_probability<kTerms>(Vec<float>::load(to_.scores + even), even_exponent, scale_log2_);
      probs.odd[x] =
          fast_probability<kTerms>(Vec<float>::load(to_.scores + odd), odd_exponent, scale_log2_);
      gradients.even[x] = probs.even[x] * (Vec<float>::load(to_.dprobs + even) - even_delta);
      gradients.odd[x] = probs.odd[x] * (Vec<float>::load(to_.dprobs + odd) - odd_delta);
    }
    store(probs, gradients);
  }
  TILEWISE_INLINE QueryPair remainder_of(const QueryPair& x) const {
    return {{rounder_.remainder(x.even[0]), rounder_.remainder(x.even[1])},
            {rounder_.remainder(x.odd[0]), rounder_.remainder(x.odd[1])}};
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
    _mm512_storeu_si512(pairs, rounder_.paired(even, odd));
    _mm512_storeu_si512(pairs + high, rounder_.paired(high_even, high_odd));
    _mm512_storeu_si512(rows, rounder_.paired(even, high_even));
    _mm512_storeu_si512(rows + kTileDepth / 2, rounder_.paired(odd, high_odd));
  }

  math::ScaleLog2<Vec<float>> scale_log2_;
  GradientBlock to_ = {};
  std::int64_t left_ = 0;  // pairs of queries
  Bf16Rounder rounder_;
};

// Replaces every NaN by one whose bits do not carry: rounding by integer addition would turn a NaN
// of all ones into zero.
TILEWISE_INLINE Vec<float> short_nan(const float* from) {
  const __m512 x = _mm512_loadu_ps(from);
  return Vec<float>(Vec<float>::Native(_mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                                                          _mm512_set1_ps(__builtin_nanf("")))));
}

// A block with score modifications, mask or dropout.
//
// scratch: its lse and delta start at the first row of `bounds`; has_non_finite: some queries may
// not be finite
template <int kTerms>
__attribute__((noinline)) inline void masked_block_gradients(const HeadContext& context,
                                                             const TileBounds& bounds,
                                                             GradientBlock block,
                                                             bool has_non_finite,
                                                             GradientScratch<float> scratch) {
  const Problem& problem = *context.problem;
  scratch.tile.probs = block.scores;
  scratch.tile.gradients = block.dprobs;
  const TileClass tile_class = classify(context, Lanes::kKeys, bounds);
  if (tile_class != TileClass::kEmpty) {
    if (kTerms == 2 && has_non_finite)
      recompute_non_finite_scores<Lanes::kKeys>(context, bounds, block.scores);
    apply_score_mod<float, Lanes::kKeys, kAmxWidth>(context, bounds, tile_class, scratch.mask,
                                                    block.scores, scratch.tile.record);
    if (problem.dropout_p > 0) {
      for (std::int64_t at = 0; at < kBlockQueries * kAmxWidth; ++at) scratch.tile.keep[at] = 0;
      fill_dropout<float, Lanes::kKeys, kAmxWidth>(
          context, bounds, dropout_scale<float>(*context.problem), scratch.tile.keep);
    }
    gradient_step<float, Lanes::kKeys, kPanelRegisters, kAmxWidth>(problem, bounds, scratch);
    if (problem.softcap > 0) apply_softcap_derivative<float, kAmxWidth>(bounds, scratch.tile);
  }
  for (std::int64_t t = 0; t < kBlockQueries; ++t) {
    const bool there = tile_class != TileClass::kEmpty && t < bounds.t_count;
    for (std::int64_t lane = there ? bounds.lane_count : 0; lane < kAmxWidth; ++lane) {
      block.scores[t * kAmxWidth + lane] = 0;
      block.dprobs[t * kAmxWidth + lane] = 0;
    }
  }
  GradientSlices<SlicePlan{1, 1, kTerms, kTerms == 2}> slices(
      ScoreScaling<float>(problem).scale_log2());
  slices.begin(block);
  const auto rows = [](const float* at) {
    return QueryPair{{short_nan(at), short_nan(at + 16)},
                     {short_nan(at + kAmxWidth), short_nan(at + kAmxWidth + 16)}};
  };
  for (std::int64_t t = 0; t < kBlockQueries; t += 2)
    slices.store(rows(block.scores + t * kAmxWidth), rows(block.dprobs + t * kAmxWidth));
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AMX
