// One block of 32 queries x 32 keys of the backward pass in bf16 pairs, between its products: from
// scores and dP to P and dS, in bf16, as the operands of the products after it. Lanes are keys.
//
// Where every query sees every key and products are the scores, in slices under the tile products;
// else by the steps of backward.h, on the same arrays.
#pragma once

#include "cpu/backward.h"
#include "cpu/pair_softmax.h"

#if TILEWISE_HAS_TILES

namespace tilewise::cpu::TILEWISE_TARGET {

inline constexpr std::int64_t kBlockQueries = 32;

// Where a block is, and where its P and dS go.
struct GradientBlock {
  float* scores;                  // (kBlockQueries, kPairWidth)
  float* dprobs;                  // (kBlockQueries, kPairWidth)
  const float* exponents;         // (kBlockQueries): LSE in units of log 2, and log2(kUnitWeight)
  const float* delta;             // (kBlockQueries)
  std::uint32_t* prob_pairs;      // (kBlockQueries / 2, kPairWidth): words of two queries
  std::uint32_t* gradient_pairs;  // (kBlockQueries / 2, kPairWidth)
  std::uint32_t* gradient_rows;   // two tiles of 16 queries, words of keys n and n + 16
  std::int64_t tiles_apart;       // words from one to the other
};

// Two queries x 32 keys of P and dS.
struct QueryPair {
  Vec<float> even[2];
  Vec<float> odd[2];
};

// kPairs: of queries, for two products of the unit. A block has 16.
template <int kPairs>
class GradientSlices {
 public:
  TILEWISE_INLINE explicit GradientSlices(Vec<float> unit) : unit_(unit) {}

  TILEWISE_INLINE void begin(const GradientBlock& block) {
    to_ = block;
    left_ = kBlockQueries / 2;
  }
  template <int kProduct>
  TILEWISE_INLINE void slice() {
    constexpr int kNow = kPairs == 1 ? 1 - kProduct % 2 : kPairs / 2;
#pragma GCC unroll 2
    for (int i = 0; i < kNow; ++i) {
      if (left_ != 0) take_queries();
    }
  }
  TILEWISE_INLINE void rest() {
    while (left_ != 0) take_queries();
  }
  // For P and dS that are made already.
  TILEWISE_INLINE void store(const QueryPair& probs, const QueryPair& gradients) {
    const std::int64_t high = Vec<float>::kLanes;
    rounder_.store(probs.even[0], probs.odd[0], to_.prob_pairs);
    rounder_.store(probs.even[1], probs.odd[1], to_.prob_pairs + high);
    const __m512i even = rounder_.lowered(rounder_.rounded(gradients.even[0]));
    const __m512i odd = rounder_.rounded(gradients.odd[0]);
    const __m512i high_even = rounder_.rounded(gradients.even[1]);
    const __m512i high_odd = rounder_.rounded(gradients.odd[1]);
    _mm512_storeu_si512(to_.gradient_pairs, PairRounder::joined(even, odd));
    _mm512_storeu_si512(to_.gradient_pairs + high,
                        PairRounder::joined(rounder_.lowered(high_even), high_odd));
    _mm512_storeu_si512(to_.gradient_rows, PairRounder::joined(even, high_even));
    _mm512_storeu_si512(to_.gradient_rows + kTileDepth / 2,
                        PairRounder::joined(rounder_.lowered(odd), high_odd));
    step();
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
          pair_exp2(multiply_subtract(Vec<float>::load(to_.scores + even), unit_, even_exponent));
      probs.odd[x] =
          pair_exp2(multiply_subtract(Vec<float>::load(to_.scores + odd), unit_, odd_exponent));
      gradients.even[x] = probs.even[x] * (Vec<float>::load(to_.dprobs + even) - even_delta);
      gradients.odd[x] = probs.odd[x] * (Vec<float>::load(to_.dprobs + odd) - odd_delta);
    }
    store(probs, gradients);
  }
  TILEWISE_INLINE void step() {
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

  Vec<float> unit_;
  GradientBlock to_ = {};
  std::int64_t left_ = 0;  // pairs of queries
  PairRounder rounder_;
};

// The block by the score rule, the mask and dropout.  scratch: its lse and delta start at the
// frame's first row
__attribute__((noinline)) inline void finish_gradients(const HeadContext& context,
                                                       const Frame& frame, GradientBlock block,
                                                       GradientScratch<float> scratch) {
  const Problem& problem = *context.problem;
  scratch.tile.probs = block.scores;
  scratch.tile.gradients = block.dprobs;
  const TileClass tile_class = classify(context, Lanes::kKeys, frame);
  if (tile_class != TileClass::kEmpty) {
    finish_scores<float, Lanes::kKeys, kPairWidth>(context, frame, tile_class, scratch.mask,
                                                   block.scores, scratch.tile.derivative);
    if (problem.dropout_p > 0) {
      for (std::int64_t at = 0; at < kBlockQueries * kPairWidth; ++at) scratch.tile.keep[at] = 0;
      fill_dropout<float, Lanes::kKeys, kPairWidth>(context, frame, scratch.tile.keep);
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
  GradientSlices<2> slices(Vec<float>(0.0f));
  slices.begin(block);
  const auto rows = [](const float* at) {
    return QueryPair{{Vec<float>::load(at), Vec<float>::load(at + 16)},
                     {Vec<float>::load(at + kPairWidth), Vec<float>::load(at + kPairWidth + 16)}};
  };
  for (std::int64_t t = 0; t < kBlockQueries; t += 2)
    slices.store(rows(block.scores + t * kPairWidth), rows(block.dprobs + t * kPairWidth));
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_TILES
