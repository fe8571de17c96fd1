// The inner product of two rows of bf16 by vdpbf16ps.
#pragma once

#include "cpu/simd/vector.h"
#include "math/number.h"

#if TILEWISE_HAS_AVX512_BF16

namespace tilewise::cpu::TILEWISE_TARGET {

// Sum of a[c] * b[c], word by word, in the order in which dP adds them.
TILEWISE_INLINE float bf16_inner_product(const math::BFloat16* a, const math::BFloat16* b,
                                         std::int64_t width) {
  const auto word = [](const math::BFloat16* from, auto whole) {
    decltype(whole) numbers = 0;
    __builtin_memcpy(&numbers, from, sizeof(numbers));
    return __m128bh(_mm_cvtsi32_si128(static_cast<int>(numbers)));
  };
  __m128 sum = _mm_setzero_ps();
  std::int64_t c = 0;
  for (; c + 2 <= width; c += 2)
    sum = _mm_dpbf16_ps(sum, word(a + c, std::uint32_t{}), word(b + c, std::uint32_t{}));
  if (c < width)
    sum = _mm_dpbf16_ps(sum, word(a + c, std::uint16_t{}), word(b + c, std::uint16_t{}));
  return _mm_cvtss_f32(sum);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AVX512_BF16
