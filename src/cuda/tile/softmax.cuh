// Online softmax on a fragment of scores (tile/fragment.h): src/math's state for each of a lane's
// two rows, its exponents by the GPU's own instruction.
#pragma once

#include "cuda/ptx/number.cuh"
#include "cuda/tile/fragment.h"
#include "math/softmax_state.h"

namespace tilewise::cuda::tile {

// What a lane knows of its two rows: `max` is the same in the four lanes of a row, `sum` this
// lane's part of the sum.
struct RowStates {
  math::SoftmaxState<float> row[kRowsPerLane];

  __device__ __forceinline__ void clear() {
    for (auto& state : row) state = math::empty_state<float>();
  }
};

__device__ __forceinline__ float quad_maximum(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// 2^x for x <= 2^7, by src/math's polynomial and an addition to the exponent's bits: ten
// instructions of the multiply-add pipe, while the unit for exp2_approx() gives four results a
// cycle. 0 below -127, rough in the denormals above it; NaN gives the largest float, which no
// weight is.
__device__ __forceinline__ float exp2_by_products(float x) {
  constexpr math::Exp2Coefficients<float> coefficients;
  constexpr float kMagic = math::Limits<float>::kRoundingMagic;
  const float clamped = ptx::maximum_or_nan(x, -127.0f);
  const float shifted = clamped + kMagic;
  const float fraction = clamped - (shifted - kMagic);
  float series = coefficients.values[coefficients.kCount - 1];
#pragma unroll
  for (int i = coefficients.kCount - 2; i >= 0; --i) {
    series = __fmaf_rn(series, fraction, coefficients.values[i]);
  }
  series = __fmaf_rn(series, fraction, 1.0f);
  return __uint_as_float((__float_as_uint(shifted) << 23) + __float_as_uint(series));
}

// How much larger than 1 a weight may be, as an exponent of 2, before the rows' sums and outputs so
// far are multiplied to make room: rarely then, and 2^8 * 2^16 keys is far from any limit.
inline constexpr float kSlack = 8.0f;

// One pair of exponentials of so many goes to exp2_by_products().
inline constexpr int kProductShare = 4;

// Takes a tile of scores into the states and leaves the weights exp(score - max) in their place,
// max being that of the row or one that was not much less. `unit` > 0 is what a unit of score is
// worth as an exponent of 2. factor (2): what the rows' sums and outputs so far are to be
// multiplied with.
//
// The exponent is one fused product, score * unit - anchor, with the anchor max * unit rounded
// once: every weight of the row is off by the same factor, which rounding_of() gives back. Scores
// beyond 2^30 lose that; the row is then redone by the careful path (sm90/epilogue.cuh).
template <int kCount>
__device__ __forceinline__ void update(float (&scores)[kCount], RowStates& states, float unit,
                                       float (&factor)[kRowsPerLane]) {
  // Chains for each row: a warp is alone with its scheduler here, and a maximum or a sum takes four
  // cycles, in which two rows of two chains have something to do.
  constexpr int kChains = 2;
  float partial[kRowsPerLane][kChains];
#pragma unroll
  for (int r = 0; r < kCount; r += 2) {
    float& max = partial[register_row(r)][r / 4 % kChains];
    const float pair = fmaxf(scores[r], scores[r + 1]);
    max = r / 4 < kChains ? pair : fmaxf(max, pair);
  }
  float anchor[kRowsPerLane];
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) {
    math::SoftmaxState<float>& state = states.row[which];
    const float before = state.max;
    const float seen = fmaxf(before, quad_maximum(fmaxf(partial[which][0], partial[which][1])));
    state.max = (seen - before) * unit <= kSlack ? before : seen;
    anchor[which] = math::anchor(state.max) * unit;
    factor[which] = ptx::exp2_approx(before * unit - anchor[which]);
  }
#pragma unroll
  for (int r = 0; r < kCount; r += 2) {
    const int which = register_row(r);
    const float low = __fmaf_rn(scores[r], unit, -anchor[which]);
    const float high = __fmaf_rn(scores[r + 1], unit, -anchor[which]);
    const bool products = kProductShare > 0 && r / 4 % kProductShare == kProductShare - 1;
    scores[r] = products ? exp2_by_products(low) : ptx::exp2_approx(low);
    scores[r + 1] = products ? exp2_by_products(high) : ptx::exp2_approx(high);
    float& sum = partial[which][r / 4 % kChains];
    const float pair = scores[r] + scores[r + 1];
    sum = r / 4 < kChains ? pair : sum + pair;
  }
#pragma unroll
  for (int which = 0; which < kRowsPerLane; ++which) {
    math::SoftmaxState<float>& state = states.row[which];
    state.sum = __fmaf_rn(state.sum, factor[which], partial[which][0] + partial[which][1]);
  }
}

// 2^(max * unit - anchor): what the weights of a row are too large by. They are rounded to 16 bits
// as if they were not: a weight that ought to be 1 is 1 there, but not in the sum.
__device__ __forceinline__ float rounding_of(float max, float unit) {
  const float error = __fmaf_rn(max, unit, -(max * unit));
  constexpr float kSmall = 0x1p-10f;  // beyond it, the weights are rougher than the square of this
  return fabsf(error) < kSmall ? __fmaf_rn(error, static_cast<float>(math::kLn2), 1.0f) : 1.0f;
}

// Multiplies the rows of a fragment; where no row of the warp changes, nothing is to be done.
template <int kCount>
__device__ __forceinline__ void rescale(float (&out)[kCount], const float (&factor)[kRowsPerLane]) {
  if (!__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
  for (int r = 0; r < kCount; ++r) out[r] *= factor[register_row(r)];
}

// Weights as the left operand of a product: rounded to 16 bits, in pairs.
template <bool kFp16, int kCount>
__device__ __forceinline__ void pack(const float (&weights)[kCount],
                                     std::uint32_t (&operand)[kCount / 2]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    operand[i] = ptx::pack<kFp16>(weights[2 * i], weights[2 * i + 1]);
  }
}

}  // namespace tilewise::cuda::tile
