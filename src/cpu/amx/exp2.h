// The exponential of the AMX kernels, short enough to overlap with tile products.
#pragma once

#include "cpu/simd/vector.h"

#if TILEWISE_HAS_AMX

namespace tilewise::cpu::TILEWISE_TARGET {

// The value of amx_exp2() for 0. It is a bf16 number, so that the largest probability of a row, at
// the anchor, is exact.
inline constexpr float kProbScale = 74.5f;

// 74.5 * 2^x with a relative error of 4e-6: a quartic in f = x - floor(x), times 2^floor(x). The
// probabilities become bf16, but their fp32 sum must keep LSE to 1e-5 in rows of few keys, for
// which a cubic (7.5e-5) is not enough. The factor 74.5 makes the leading coefficient 1, so that
// two multiplications and five additions suffice (Knuth 1962; The Art of Computer Programming
// 4.6.4). During a tile product additions have two ports, multiplications one. The result for -inf
// is 0; a NaN stays.
TILEWISE_INLINE Vec<float> amx_exp2(Vec<float> x) {
  constexpr int kFloor = 9;  // x - floor(x), no exceptions
  const Vec<float> f(Vec<float>::Native(_mm512_reduce_ps(__m512(x.v), kFloor)));
  const Vec<float> y = multiply_add(f + Vec<float>(1.44632435f), f, Vec<float>(30.7515678f));
  const Vec<float> z = f + Vec<float>(-47.0663185f) + y;
  const Vec<float> series = multiply_add(z, y, Vec<float>(576.204163f));
  return Vec<float>(Vec<float>::Native(_mm512_scalef_ps(__m512(series.v), __m512(x.v))));
}

// a * b - c, rounded once.
TILEWISE_INLINE Vec<float> multiply_subtract(Vec<float> a, Vec<float> b, Vec<float> c) {
  return Vec<float>(Vec<float>::Native(_mm512_fmsub_ps(__m512(a.v), __m512(b.v), __m512(c.v))));
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AMX
