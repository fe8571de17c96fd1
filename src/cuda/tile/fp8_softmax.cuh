// Online softmax for probs that are rounded to e4m3, whose smallest number is 2^-9.
//
// Probs are 2^8 exp(score - max), with the maximum of all scores so far: the largest is 256, a
// number of e4m3. Those down to 2^-14 of the largest are normal numbers, with a rounding error of
// 2^-4 at most; down to 2^-18 they are denormal. Below, a prob counts as 0 in O, but not in the
// row's sum, which has all probs in fp32. Attention that stores P of at most 1 in e4m3 loses probs
// from 2^-10 on.
#pragma once

#include "cuda/tile/careful_softmax.cuh"

namespace tilewise::cuda::tile {

inline constexpr float kFp8ProbExponent = 8.0f;

// From this anchor on, its rounding may make probs so large that e4m3 does not hold them: scores
// are taken less their maximum.
inline constexpr float kHugeFp8Anchor = 0x1p22f;

// The anchor of a row: its probs, factors and LSE all use these bits, so that they agree.
__device__ __forceinline__ float fp8_anchor(float max, float scale_log2) {
  return __fmaf_rn(math::anchor(max), scale_log2, -kFp8ProbExponent);
}

// Updates the states by the maxima of a tile of scores. The factors are those of sums and outputs
// so far: exactly 1 where the maximum stays, 0 where the row had seen no key. scale_log2: more than
// 0.
__device__ __forceinline__ Anchors update_fp8_max(const RowMax& maxima, RowStates& states,
                                                  float scale_log2) {
  Anchors anchors;
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) {
    float& max = states.row[which].max;
    const float before = max;
    max = fmaxf(before, maxima.row[which]);
    anchors.anchor[which] = fp8_anchor(max, scale_log2);
    const float growth = anchors.anchor[which] - fp8_anchor(before, scale_log2);
    const bool none = before == -math::Limits<float>::kInfinity;
    anchors.factor[which] = none ? 0.0f : ptx::exp2_approx(-growth);
  }
  return anchors;
}

// Whether a row of the warp has a huge anchor.
__device__ __forceinline__ bool any_huge_fp8(const Anchors& anchors) {
  return __any_sync(~0u, is_huge(anchors.anchor[0], kHugeFp8Anchor) ||
                             is_huge(anchors.anchor[1], kHugeFp8Anchor));
}
// Subtracts the maximum from the scores of huge rows, whose factors come from the difference of the
// maxima. Other rows keep their bits.
template <int kCount>
__device__ __forceinline__ void rebase_huge_fp8(float (&scores)[kCount], const RowStates& before,
                                                const RowStates& states, float scale_log2,
                                                Anchors& anchors) {
  float base[kRowsPerLane];
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) {
    const bool huge = is_huge(anchors.anchor[which], kHugeFp8Anchor);
    const float max = states.row[which].max;
    base[which] = huge ? max : 0.0f;
    if (!huge) continue;
    anchors.anchor[which] = -kFp8ProbExponent;
    anchors.factor[which] = ptx::exp2_approx((before.row[which].max - max) * scale_log2);
  }
#pragma unroll
  for (int r = 0; r < kCount; ++r) scores[r] -= base[register_row(r)];
}

// Rounds probs (16, kCount * 2) of a warp to e4m3 and packs them as the left operand of a product
// over keys in the order of V^T (forward/sm90/fp8/transposer.cuh): no number moves between lanes.
template <int kCount>
__device__ __forceinline__ void pack_fp8_probs(const float (&probs)[kCount],
                                               std::uint32_t (&operand)[kCount / 4]) {
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    // Register i: row i % 2 of the lane, of the 16 keys i / 2. Its bytes are two columns of each of
    // two groups of 8.
    const int first = i / 2 * 8 + i % 2 * 2;
    operand[i] = ptx::pack_e4m3(probs[first], probs[first + 1], probs[first + 4], probs[first + 5]);
  }
}

// O = O * factor + the product of a key tile.
template <int kCount>
__device__ __forceinline__ void add_product(const float (&product)[kCount],
                                            const float (&factor)[kRowsPerLane], float* out) {
#pragma unroll
  for (int r = 0; r < kCount; ++r) out[r] = __fmaf_rn(out[r], factor[register_row(r)], product[r]);
}

}  // namespace tilewise::cuda::tile
