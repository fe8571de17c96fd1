// The inner product of two rows of bf16 or fp16, in the order in which AMX adds them. With one key,
// delta must equal dP bit by bit (backward/delta.h).
#pragma once

#include "cpu/amx/packing.h"

#if TILEWISE_HAS_AMX

namespace tilewise::cpu::TILEWISE_TARGET {

// Adds the products of 32 numbers to a sum, in the order of TDPBF16PS: those of even and those of
// odd index each in a sum of their own, and then both to the whole. Products of bf16 are exact.
TILEWISE_INLINE float add_tile_products(__m512i left, __m512i right, float sum) {
  const auto low = [](__m512i words) { return __m512(_mm512_slli_epi32(words, 16)); };
  const auto high = [](__m512i words) {
    return __m512(_mm512_and_si512(words, _mm512_set1_epi32(-0x10000)));
  };
  float products[2][kTileDepth / 2];
  _mm512_storeu_ps(products[0], _mm512_mul_ps(low(left), low(right)));
  _mm512_storeu_ps(products[1], _mm512_mul_ps(high(left), high(right)));
  float even = 0;
  float odd = 0;
  for (std::int64_t i = 0; i < kTileDepth / 2; ++i) {
    even += products[0][i];
    odd += products[1][i];
  }
  return sum + (even + odd);
}

// Sum of a[c] * b[c], in the order of steps and terms in which dP adds them (fp16_terms.h). Tile
// products take denormals for zeros, and so does this sum.
template <int kTerms>
TILEWISE_INLINE float amx_inner_product(const std::uint16_t* a, const std::uint16_t* b,
                                        std::int64_t width) {
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
  float sum = 0;
  for (std::int64_t c = 0; c < width; c += kTileDepth) {
    if constexpr (kTerms == 1) {
      sum = add_tile_products(load_terms(a, c, width), load_terms(b, c, width), sum);
    } else {
      const __m512i left = load_terms<Term::kHigh>(a, c, width);
      const __m512i right = load_terms<Term::kHigh>(b, c, width);
      const __m512i low_left = load_terms<Term::kLow>(a, c, width);
      const __m512i low_right = load_terms<Term::kLow>(b, c, width);
      sum = add_tile_products(left, right, sum);
      sum = add_tile_products(left, low_right, sum);
      sum = add_tile_products(low_left, low_right, sum);
      sum = add_tile_products(low_left, right, sum);
    }
  }
  _mm_setcsr(mode);
  return sum;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AMX
