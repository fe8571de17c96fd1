// Softcap, cap * tanh(score / cap), of products that have not been scaled yet.
#pragma once

#include "cuda/ptx/arithmetic.cuh"
#include "cuda/tile/score_scaling.h"
#include "math/score_rule.h"

namespace tilewise::cuda::tile {

// Softcap exact to the rounding of fp32.
struct ExactSoftcap {
  static constexpr bool kTwoForms = false;  // ShortSoftcap never replaces it
  ScoreScaling scaling;

  __device__ __forceinline__ float operator()(float product) const {
    return math::softcapped(product * scaling.scale, scaling.cap);
  }
};

// Softcap for 16-bit inputs, whose probs become 16 bits, and for caps as they are in use (15 to
// 50). It computes tanh(y) = (e - 1) / (e + 1) with e = exp(2 y): an exponential, a reciprocal and
// five operations. The relative error of e, 2^-22.5, makes an error of the score of up to cap *
// 2^-23; the other errors add up to 2^-21 of the score.
class ShortSoftcap {
 public:
  __device__ __forceinline__ explicit ShortSoftcap(const ScoreScaling& scaling)
      : scale_log2_(scaling.short_scale_log2), cap_(scaling.cap) {}

  // NaN gives NaN.
  __device__ __forceinline__ float operator()(float product) const {
    float derivative;
    return with_derivative(product, derivative);
  }

  // derivative: 1 - tanh(y)^2 = 4 e / (e + 1)^2
  __device__ __forceinline__ float with_derivative(float product, float& derivative) const {
    const float e = ptx::exp2_approx(ptx::min_nan(product * scale_log2_, kMaxExponent));
    const float inverse = ptx::reciprocal_approx(e + 1);
    derivative = 4 * e * inverse * inverse;
    return __fmaf_rn(cap_, e, -cap_) * inverse;
  }

 private:
  static constexpr float kMaxExponent = 64.0f;  // e - 1 and e + 1 are equal there, and finite

  float scale_log2_;  // e = exp2(product * scale_log2)
  float cap_;
};

// Softcap for any cap, with a relative error of 2^-20.5. It computes score * R(z) with R(z) =
// tanh(y) / y and z = y^2 = (score / cap)^2. R is a quotient of polynomials of degrees 3 and 4; its
// error is 2^-23.0 for |y| <= 7.75 (Remez), where tanh is 1 - 2^-21.4. R(0) is 1, so that a cap far
// above the scores changes nothing. It takes two bounds, twelve operations and a reciprocal;
// ExactSoftcap has three divisions.
class Softcap {
 public:
  static constexpr bool kTwoForms = true;  // ShortSoftcap replaces it where that is accurate
  __device__ __forceinline__ explicit Softcap(const ScoreScaling& scaling) : scale_(scaling.scale) {
    // Outside of these bounds products would overflow; no scores are that large.
    const float cap = fminf(fmaxf(scaling.cap, 0x1p-100f), 0x1p120f);
    const float size = fabsf(scale_);
    bound_ = kMaxY * cap * ptx::reciprocal_approx(size);
    y_scale_ = fminf(size * ptx::reciprocal_approx(cap), 0x1p120f);
  }

  // NaN gives NaN.
  __device__ __forceinline__ float operator()(float product) const {
    const float x = ptx::max_nan(-bound_, ptx::min_nan(product, bound_));
    const float y = x * y_scale_;
    const float z = y * y;
    float numerator = __fmaf_rn(1.17330244e-05f * scale_, z, 2.97909546e-03f * scale_);
    numerator = __fmaf_rn(numerator, z, 1.29518165e-01f * scale_);
    numerator = __fmaf_rn(numerator, z, scale_);
    float denominator = __fmaf_rn(2.55702637e-07f, z, 2.42641650e-04f);
    denominator = __fmaf_rn(denominator, z, 2.39304071e-02f);
    denominator = __fmaf_rn(denominator, z, 4.62850883e-01f);
    denominator = __fmaf_rn(denominator, z, 1.0f);
    return x * numerator * ptx::reciprocal_approx(denominator);
  }

 private:
  static constexpr float kMaxY = 7.75f;  // the bound of |y|

  float scale_;
  float bound_;    // the bound of |product| at which |y| is kMaxY
  float y_scale_;  // |y| = |product| * y_scale
};

}  // namespace tilewise::cuda::tile
