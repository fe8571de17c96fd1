// exp2 and tanh, written once for float and double, for one lane or many.
#pragma once

#include "math/scalar.h"

namespace tilewise::math {

// Coefficients of (2^f - 1)/f on [-1/2, 1/2], which minimise the relative error of 2^f (Remez). The
// constant term of 2^f is exactly 1, so exp2(0) = 1: the largest score of a row has the
// unnormalised probability 1.
template <class T>
struct Exp2Coefficients;
template <>
struct Exp2Coefficients<float> {  // the relative error of the polynomial is 9.2e-8
  static constexpr int kCount = 5;
  float values[kCount] = {0.693146977598992f, 0.2402224208537671f, 0.055507337434700856f,
                          0.009671512639956454f, 0.0013264727140072014f};
};
template <>
struct Exp2Coefficients<double> {  // the relative error is 3.4e-18
  static constexpr int kCount = 11;
  double values[kCount] = {0.6931471805599453,     0.2402265069591013,     0.055504108664820084,
                           0.00961812910759412,    0.001333355814677462,   0.0001540353045711209,
                           1.5252733493127489e-05, 1.3215435282308488e-06, 1.0178199571842138e-07,
                           7.073783248503134e-09,  4.434771298200377e-10};
};

// Returns mantissa * 2^n for an integer n in [kLowestExp2, kMaxExponent], correctly rounded into
// the denormals.
template <class T>
TILEWISE_INLINE T scale_exponent(T mantissa, T n) {
  using L = Lane<T>;
  const T half = (n * T(L(0.5)) + T(Limits<L>::kRoundingMagic)) - T(Limits<L>::kRoundingMagic);
  return (mantissa * power_of_two(half)) * power_of_two(n - half);
}

// kOffset rounds to an integer as the rounding magic does, and leaves the exponent field of 2^(n +
// kUp) in the low bits of the mantissa. It is even, so that ties round to the same side.
template <class L>
struct PowerOffset {
  static constexpr int kUp = sizeof(L) == 8 ? 513 : 65;
  static constexpr L kDown = sizeof(L) == 8 ? L(0x1p-513) : L(0x1p-65);
  static constexpr L kOffset = Limits<L>::kRoundingMagic + Limits<L>::kMaxExponent - 1 + L(kUp);
};

// Returns mantissa * 2^n for an integer n in [kLowestProb, 62], and 0 where x < lowest (n may be
// anything there). `shifted` is n + kOffset. Both products are exact.
template <class T>
TILEWISE_INLINE T scale_exponent_from(T mantissa, T n, T shifted, T x, T lowest) {
  using L = Lane<T>;
  (void)n;  // only targets with an instruction of their own use n
  const T scaled = mantissa * power_of_bits(shifted);
  return select(x < lowest, T(L(0)), scaled) * T(PowerOffset<L>::kDown);
}

// Returns 2^fraction for |fraction| <= 1/2.
template <class T>
TILEWISE_INLINE T exp2_of_fraction(T fraction) {
  using L = Lane<T>;
  // The coefficients are a local copy, because a GPU function cannot read a static array of the
  // host.
  constexpr Exp2Coefficients<L> coefficients;
  T series(coefficients.values[coefficients.kCount - 1]);
  for (int i = coefficients.kCount - 2; i >= 0; --i) {
    series = multiply_add(series, fraction, T(coefficients.values[i]));
  }
  return multiply_add(series, fraction, T(L(1)));
}

// Returns 2^(fraction + rounded) for |fraction| <= 1/2 and an integer `rounded` in [kLowestExp2,
// kMaxExponent]. The polynomial is multiplied by 2^rounded in two steps, so that denormal results
// round only once.
template <class T>
TILEWISE_INLINE T exp2_of_parts(T fraction, T rounded) {
  return scale_exponent(exp2_of_fraction(fraction), rounded);
}

// Returns 2^x for any x: 0 below the denormals, infinity above the range, NaN for NaN. The error is
// at most 2.3 ulp in float and 1.3 ulp in double (measured without fused operations by tests/math).
template <class T>
TILEWISE_INLINE T exp2(T x) {
  using L = Lane<T>;
  const T magic(Limits<L>::kRoundingMagic);
  const T clamped = minimum(T(Limits<L>::kMaxExponent), maximum(T(Limits<L>::kLowestExp2), x));
  const T rounded = (clamped + magic) - magic;
  return exp2_of_parts(clamped - rounded, rounded);
}

// scale_log2: a positive factor that turns a difference of scores into an exponent of 2. It is
// log2(e) for scores as the formula has them, and scale * log2(e) for unscaled products q.k.
template <class T>
struct ScaleLog2 {
  T factor;
  T lowest;  // below this difference the power would be denormal, and counts as 0

  TILEWISE_INLINE explicit ScaleLog2(T scale_log2 = T(Lane<T>(kLog2E)))
      : factor(scale_log2), lowest(T(Limits<Lane<T>>::kLowestProb) / scale_log2) {}
};

// Returns 2^(x * scale_log2) for x * scale_log2 <= 62 or NaN; with the default this is exp(x). The
// product is not rounded before its fraction is taken, which at exponents of -20 would cost 10 ulp.
// The fraction itself is rounded, unlike in exp2; this costs 0.1 ulp. The error is at most 2.5 ulp
// in float and 1.5 ulp in double. Powers below the normal numbers are 0, and selected: beside the
// power 1 of the anchor they have no influence, and computing one, or multiplying by it, costs x86
// a hundred cycles. Whatever the discarded side computes may be NaN.
template <class T>
TILEWISE_INLINE T exp2_of_product(T x, const ScaleLog2<T>& scale_log2) {
  const T offset(PowerOffset<Lane<T>>::kOffset);
  const T shifted = multiply_add(x, scale_log2.factor, offset);
  const T n = shifted - offset;
  const T fraction = fused_multiply_add(x, scale_log2.factor, -n);
  return scale_exponent_from(exp2_of_fraction(fraction), n, shifted, x, scale_log2.lowest);
}

// Below this |x|^2 the Pade approximant of tanh is exact to the rounding of the type: its relative
// error is |x|^12 / (135135 * 10395).
template <class T>
inline constexpr T kTanhSmall = T(0);
template <>
inline constexpr float kTanhSmall<float> = 1.44f;  // 6e-9
template <>
inline constexpr double kTanhSmall<double> = 0.0729;  // 1e-16

// Returns tanh(x), NaN for NaN. Small |x| use the [5/6] Pade approximant: 1 - 2/(exp2 + 1) alone
// would lose all relative accuracy there, and a large softcap multiplies that loss. All other x use
// 1 - 2/(exp2(2x log2 e) + 1). The error is at most 4 ulp (2.9 seen).
template <class T>
TILEWISE_INLINE T tanh(T x) {
  using L = Lane<T>;
  const T z = x * x;
  const T numerator = multiply_add(multiply_add(T(L(21)), z, T(L(1260))), z, T(L(10395)));
  const T denominator = multiply_add(multiply_add(z + T(L(210)), z, T(L(4725))), z, T(L(10395)));
  const T small = x * (numerator / denominator);
  const T large = T(L(1)) - T(L(2)) / (exp2(x * T(L(2 * kLog2E))) + T(L(1)));
  return select(z < T(kTanhSmall<L>), small, large);
}

// Returns 1 - tanh(x)^2 without cancellation, as 4e / (1 + e)^2 with e = exp(-2|x|); NaN for NaN.
template <class T>
TILEWISE_INLINE T tanh_derivative(T x) {
  using L = Lane<T>;
  const T e = exp2(absolute(x) * T(L(-2 * kLog2E)));
  const T sum = T(L(1)) + e;
  return T(L(4)) * e / (sum * sum);
}

}  // namespace tilewise::math
