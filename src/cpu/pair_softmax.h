// The softmax between products in bf16 pairs, one block of 32 keys x 32 queries at a time.
//
// Weights are 2^(score * unit - reference). The reference is the maximum of the first block that a
// row sees; it moves when a later maximum is above it by more than kSlack, and then what has been
// summed is scaled once. A row whose largest score comes first has weight 1 there, exactly.
#pragma once

#include "cpu/forward_parts.h"
#include "cpu/pair_operand.h"

#if TILEWISE_HAS_TILES

namespace tilewise::cpu::TILEWISE_TARGET {

// Registers to a panel: two make the 32 x 32 block that keeps all eight tile registers busy.
inline constexpr int kPanelRegisters = 2;
inline constexpr int kPairWidth = kPanelRegisters * Vec<float>::kLanes;
inline constexpr std::int64_t kBlockKeys = 32;
// Weights of up to 2^8 in a sum of bf16 products lose nothing, and the reference seldom moves.
inline constexpr float kSlack = 8.0f;

// What a panel has summed up so far.
struct PairState {
  float* reference;  // (kPairWidth), -inf: nothing seen
  float* sum;        // (kPairWidth)
  float* out;        // (padded Dv, kPairWidth)
};

// 2^x, relative error 3e-6: a quartic in x - floor(x), times 2^floor(x). The weights become bf16,
// and their fp32 sum must keep the LSE to 1e-5 in rows of few keys: a cubic (7.5e-5) would not.
// 2^0 is exactly 1, as bf16 has it.
// -inf gives 0, NaN stays.
TILEWISE_INLINE Vec<float> pair_exp2(Vec<float> x) {
  constexpr int kFloor = 9;  // x - floor(x), no exceptions
  const Vec<float> f(Vec<float>::Native(_mm512_reduce_ps(__m512(x.v), kFloor)));
  Vec<float> series(0.013426686f);
  series = multiply_add(series, f, Vec<float>(0.052242473f));
  series = multiply_add(series, f, Vec<float>(0.24128021f));
  series = multiply_add(series, f, Vec<float>(0.69304484f));
  series = multiply_add(series, f, Vec<float>(1.0f));
  return Vec<float>(Vec<float>::Native(_mm512_scalef_ps(__m512(series.v), __m512(x.v))));
}

// Moves the reference of 16 lanes to what their scores want; cold.  pairs: the weights of the unit
// so far, `rows` pairs of keys
struct Move {
  std::int64_t value_rows;
  std::int64_t pair_rows;
  std::uint32_t* pairs;
};
__attribute__((noinline)) inline void move_reference(Vec<float> wanted, int lane,
                                                     const PairState& state, const Move& move) {
  const Vec<float> old = Vec<float>::load(state.reference + lane);
  const Vec<float> none(-math::Limits<float>::kInfinity);
  const Vec<float> now = select((wanted > old + Vec<float>(kSlack)), wanted, old);
  // Nothing was seen: nothing to scale, and -inf - -inf is no number.
  const Vec<float> factor = select(old == none, Vec<float>(1.0f), math::exp2(old - now));
  now.store(state.reference + lane);
  (Vec<float>::load(state.sum + lane) * factor).store(state.sum + lane);
  for (std::int64_t r = 0; r < move.value_rows; ++r) {
    float* const at = state.out + r * kPairWidth + lane;
    (Vec<float>::load(at) * factor).store(at);
  }
  const PairRounder rounder;
  for (std::int64_t r = 0; r < move.pair_rows; ++r) {
    std::uint32_t* const at = move.pairs + r * kPairWidth + lane;
    const __m512i words = _mm512_loadu_si512(at);
    const Vec<float> even(Vec<float>::Native(_mm512_slli_epi32(words, 16)));
    const Vec<float> odd(Vec<float>::Native(
        _mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xFFFF0000)))));
    rounder.store(even * factor, odd * factor, at);
  }
}

// scores (32, kPairWidth) to weights, rounded and paired, and their sum before rounding. Weights
// are left as floats in `scores` too if a dropout is to come.
TILEWISE_INLINE void pair_softmax(Vec<float> unit, float* scores, std::uint32_t* pairs,
                                  const PairState& state, const Move& move, bool keep_floats) {
  constexpr int kLanes = Vec<float>::kLanes;
  const PairRounder rounder;
  for (int lane = 0; lane < kPairWidth; lane += kLanes) {
    Vec<float> max[2] = {Vec<float>::load(scores + lane),
                         Vec<float>::load(scores + kPairWidth + lane)};
    for (std::int64_t j = 2; j < kBlockKeys; j += 2) {
      max[0] = maximum(Vec<float>::load(scores + j * kPairWidth + lane), max[0]);
      max[1] = maximum(Vec<float>::load(scores + (j + 1) * kPairWidth + lane), max[1]);
    }
    const Vec<float> wanted = maximum(max[0], max[1]) * unit;
    Vec<float> reference = Vec<float>::load(state.reference + lane);
    if (_mm512_cmp_ps_mask(__m512(wanted.v), __m512((reference + Vec<float>(kSlack)).v),
                           _CMP_GT_OQ) != 0) {
      move_reference(wanted, lane, state, move);
      reference = Vec<float>::load(state.reference + lane);
    }
    const Vec<float> anchor = math::anchor(reference);
    // The product is rounded as that of the largest score was: at scores of 10^10 a fused one would
    // be thousands away from the reference.
    Vec<float> total[2] = {Vec<float>(0.0f), Vec<float>(0.0f)};
#pragma GCC unroll 4
    for (std::int64_t j = 0; j < kBlockKeys; j += 2) {
      float* const at = scores + j * kPairWidth + lane;
      const Vec<float> even = pair_exp2(Vec<float>::load(at) * unit - anchor);
      const Vec<float> odd = pair_exp2(Vec<float>::load(at + kPairWidth) * unit - anchor);
      total[0] = total[0] + even;
      total[1] = total[1] + odd;
      rounder.store(even, odd, pairs + j / 2 * kPairWidth + lane);
      if (keep_floats) {
        even.store(at);
        odd.store(at + kPairWidth);
      }
    }
    (Vec<float>::load(state.sum + lane) + (total[0] + total[1])).store(state.sum + lane);
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_TILES
