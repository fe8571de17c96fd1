// bf16 and fp16 as storage types: conversion to and from float, rounding to nearest even.
#pragma once

#include "math/config.h"

namespace tilewise::math {

struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

TILEWISE_INLINE std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits;
}
TILEWISE_INLINE float float_of(std::uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}

TILEWISE_INLINE float to_float(BFloat16 x) {
  return float_of(static_cast<std::uint32_t>(x.bits) << 16);
}

// Rounds to nearest even; NaN stays NaN (quiet), overflow becomes infinity.
TILEWISE_INLINE BFloat16 to_bfloat16(float x) {
  const std::uint32_t bits = bits_of(x);
  if (x != x) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

TILEWISE_INLINE float to_float(Float16 x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  // The exponent's bias moves from 15 to 127. A denormal, m * 2^-24, is 2^-14 * (1 + m / 2^10) less
  // 2^-14: no operation meets a denormal float, which takes a hundred cycles on some cores.
  const std::uint32_t moved = (magnitude << 13) + 0x38000000u;
  if (magnitude >= 0x400u) return float_of(sign | moved);
  return float_of(sign | bits_of(float_of(moved + 0x00800000u) - 0x1p-14f));
}

// Rounds to nearest even; NaN stays NaN (quiet), overflow becomes infinity, denormals are kept.
TILEWISE_INLINE Float16 to_float16(float x) {
  const std::uint32_t sign = (bits_of(x) >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits_of(x) & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u)
    return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // 65520 and more
  if (magnitude < 0x38800000u) {  // below 2^-14, adding 1/2 leaves the rounded fp16
                                  // denormal in the low mantissa bits
    const std::uint32_t rounded = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    return {static_cast<std::uint16_t>(sign | rounded)};
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

// load<T>(x) and store<S>(x) convert between a storage type S and an arithmetic type T (float or
// double).
template <class T>
TILEWISE_INLINE T load(float x) {
  return static_cast<T>(x);
}
template <class T>
TILEWISE_INLINE T load(double x) {
  return static_cast<T>(x);
}
template <class T>
TILEWISE_INLINE T load(BFloat16 x) {
  return static_cast<T>(to_float(x));
}
template <class T>
TILEWISE_INLINE T load(Float16 x) {
  return static_cast<T>(to_float(x));
}
TILEWISE_INLINE void store(double x, double* to) { *to = x; }
TILEWISE_INLINE void store(double x, float* to) { *to = static_cast<float>(x); }
TILEWISE_INLINE void store(float x, double* to) { *to = static_cast<double>(x); }
TILEWISE_INLINE void store(float x, float* to) { *to = x; }
TILEWISE_INLINE void store(float x, BFloat16* to) { *to = to_bfloat16(x); }
TILEWISE_INLINE void store(float x, Float16* to) { *to = to_float16(x); }

// A double that is narrowed to 16 bits by way of float would round twice. It is therefore rounded
// to odd first: the float keeps a sticky bit.
TILEWISE_INLINE float to_odd_float(double x) {
  const float nearest = static_cast<float>(x);
  const double back = static_cast<double>(nearest);
  if (back == x || x != x) return nearest;
  std::uint32_t bits = bits_of(nearest);
  if ((back > x) == (x > 0)) --bits;  // towards zero
  return float_of(bits | 1u);
}
TILEWISE_INLINE void store(double x, BFloat16* to) { *to = to_bfloat16(to_odd_float(x)); }
TILEWISE_INLINE void store(double x, Float16* to) { *to = to_float16(to_odd_float(x)); }

}  // namespace tilewise::math
