// The basic operations of src/math for the scalar types float and double. src/cpu/simd.h defines
// the same functions for its vectors; the templates of this folder find either set by
// argument-dependent or ordinary lookup.
#pragma once

#include "math/config.h"

namespace tilewise::math {

template <class T>
struct LaneType;  // LaneType<T>::Type is the arithmetic type of one lane
template <>
struct LaneType<float> {
  using Type = float;
};
template <>
struct LaneType<double> {
  using Type = double;
};
template <class T>
using Lane = typename LaneType<T>::Type;

template <class T>
struct Limits;
template <>
struct Limits<float> {
  static constexpr float kInfinity = __builtin_huge_valf();
  static constexpr float kRoundingMagic =
      12582912.0f;  // 1.5 * 2^23: x + magic - magic rounds x to an integer
  static constexpr float kMaxExponent = 128.0f;
  static constexpr float kLowestExp2 = -151.0f;  // below this, exp2 is 0
  static constexpr float kLowestProb = -126.0f;  // below this, exp2 is denormal
};
template <>
struct Limits<double> {
  static constexpr double kInfinity = __builtin_huge_val();
  static constexpr double kRoundingMagic = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double kMaxExponent = 1024.0;
  static constexpr double kLowestExp2 = -1076.0;
  static constexpr double kLowestProb = -1022.0;
};

// Returns condition ? a : b. This is a selection, not arithmetic: the side not taken may hold
// anything.
TILEWISE_INLINE float select(bool condition, float a, float b) { return condition ? a : b; }
TILEWISE_INLINE double select(bool condition, double a, double b) { return condition ? a : b; }

// Returns a > b ? a : b, so a NaN in `a` gives b and a NaN in `b` is kept.
TILEWISE_INLINE float maximum(float a, float b) { return a > b ? a : b; }
TILEWISE_INLINE double maximum(double a, double b) { return a > b ? a : b; }
TILEWISE_INLINE float minimum(float a, float b) { return a < b ? a : b; }
TILEWISE_INLINE double minimum(double a, double b) { return a < b ? a : b; }

// Returns a * b + c, fused where the target has the instruction.
#if defined(__CUDA_ARCH__)
TILEWISE_INLINE float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
TILEWISE_INLINE double multiply_add(double a, double b, double c) { return __fma_rn(a, b, c); }
#else
TILEWISE_INLINE float multiply_add(float a, float b, float c) { return a * b + c; }
TILEWISE_INLINE double multiply_add(double a, double b, double c) { return a * b + c; }
#endif

// Returns a * b + c with one rounding (in float: of the double result), at any cost.
#if defined(__CUDA_ARCH__)
TILEWISE_INLINE float fused_multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
TILEWISE_INLINE double fused_multiply_add(double a, double b, double c) {
  return __fma_rn(a, b, c);
}
#else
TILEWISE_INLINE float fused_multiply_add(float a, float b, float c) {
  return static_cast<float>(static_cast<double>(a) * b + c);
}
TILEWISE_INLINE double fused_multiply_add(double a, double b, double c) {
  return __builtin_fma(a, b, c);
}
#endif

// Returns 2^n for an integer n within the normal range of T. The rounding magic leaves n in the low
// bits without a conversion to an integer, which would be undefined for NaN (any result is allowed
// there).
TILEWISE_INLINE float power_of_two(float n) {
  const float shifted = n + Limits<float>::kRoundingMagic;
  std::uint32_t bits;
  __builtin_memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits + 127) << 23;
  float result;
  __builtin_memcpy(&result, &bits, sizeof(result));
  return result;
}
TILEWISE_INLINE double power_of_two(double n) {
  const double shifted = n + Limits<double>::kRoundingMagic;
  std::uint64_t bits;
  __builtin_memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits + 1023) << 52;
  double result;
  __builtin_memcpy(&result, &bits, sizeof(result));
  return result;
}

// Returns the number whose sign and exponent are the low bits of the mantissa of x.
TILEWISE_INLINE float power_of_bits(float x) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  bits <<= 23;
  float result;
  __builtin_memcpy(&result, &bits, sizeof(result));
  return result;
}
TILEWISE_INLINE double power_of_bits(double x) {
  std::uint64_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  bits <<= 52;
  double result;
  __builtin_memcpy(&result, &bits, sizeof(result));
  return result;
}

template <class T>
TILEWISE_INLINE bool is_finite(T x) {
  return x - x == T(0);
}

TILEWISE_INLINE float log2(float x) { return __builtin_log2f(x); }
TILEWISE_INLINE double log2(double x) { return __builtin_log2(x); }
TILEWISE_INLINE float absolute(float x) { return __builtin_fabsf(x); }
TILEWISE_INLINE double absolute(double x) { return __builtin_fabs(x); }

}  // namespace tilewise::math
