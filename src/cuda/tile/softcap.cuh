// cap * tanh(score / cap), from products: scores before their scale.
#pragma once

#include "cuda/ptx/arithmetic.cuh"
#include "cuda/tile/score_scaling.h"
#include "math/score_rule.h"

namespace tilewise::cuda::tile {

// To the rounding of fp32.
struct ExactSoftcap {
  static constexpr bool kTwoForms = false;  // ShortSoftcap stands for it where that serves
  ScoreScaling scaling;

  __device__ __forceinline__ float operator()(float product) const {
    return math::softcapped(product * scaling.scale, scaling.cap);
  }
};

// For inputs of 16 bits, whose probs become 16 bits, and caps as they are in use (15 to 50):
// tanh(y) = (e - 1) / (e + 1) with e = exp(2 y), an exponential, a reciprocal and five operations.
// The relative error of e, 2^-22.5, is one of up to cap * 2^-23; others add up to 2^-21 of the
// score.
class ShortSoftcap {
 public:
  __device__ __forceinline__ explicit ShortSoftcap(const ScoreScaling& scaling)
      : unit_(scaling.short_unit), cap_(scaling.cap) {}

  // NaN for NaN.
  __device__ __forceinline__ float operator()(float product) const {
    const float e = ptx::exp2_approx(ptx::min_nan(product * unit_, kMost));
    return __fmaf_rn(cap_, e, -cap_) * ptx::reciprocal_approx(e + 1);
  }

 private:
  static constexpr float kMost = 64.0f;  // e - 1 and e + 1 are the same there, and finite

  float unit_;  // from products to exponents of 2
  float cap_;
};

// The same for any cap: relative error 2^-20.5. It is score * R(z) with R(z) = tanh(y) / y and z =
// y^2 = (score / cap)^2, R a quotient of polynomials of degrees 3 and 4 (Remez: 2^-23.0 for |y|
// <= 7.75, where tanh is 1 - 2^-21.4; R(0) is 1, so that a cap far above the scores changes
// nothing). Two bounds, twelve operations and a reciprocal; the exact one has three divisions.
class Softcap {
 public:
  static constexpr bool kTwoForms = true;
  __device__ __forceinline__ explicit Softcap(const ScoreScaling& scaling) : scale_(scaling.scale) {
    // Beyond, the end of the numbers would be near; nobody sees such scores.
    const float within = fminf(fmaxf(scaling.cap, 0x1p-100f), 0x1p120f);
    const float size = fabsf(scale_);
    bound_ = kMost * within * ptx::reciprocal_approx(size);
    unit_ = fminf(size * ptx::reciprocal_approx(within), 0x1p120f);
  }

  // NaN for NaN.
  __device__ __forceinline__ float operator()(float product) const {
    const float x = ptx::max_nan(-bound_, ptx::min_nan(product, bound_));
    const float y = x * unit_;
    const float z = y * y;
    float above = __fmaf_rn(1.17330244e-05f * scale_, z, 2.97909546e-03f * scale_);
    above = __fmaf_rn(above, z, 1.29518165e-01f * scale_);
    above = __fmaf_rn(above, z, scale_);
    float below = __fmaf_rn(2.55702637e-07f, z, 2.42641650e-04f);
    below = __fmaf_rn(below, z, 2.39304071e-02f);
    below = __fmaf_rn(below, z, 4.62850883e-01f);
    below = __fmaf_rn(below, z, 1.0f);
    return x * above * ptx::reciprocal_approx(below);
  }

 private:
  static constexpr float kMost = 7.75f;  // of |y|

  float scale_;
  float bound_;  // of products
  float unit_;   // from products to |y|
};

}  // namespace tilewise::cuda::tile
