// Rounding.
#pragma once

#include "cpu/simd/vector.h"

#if TILEWISE_HAS_AMX

namespace tilewise::cpu::TILEWISE_TARGET {

// The words (low: even, high: odd), both rounded to the nearest bf16 by integer addition, ties away
// from zero: one fp32 weight in 65536 is a tie, and half of these go the other way than to even,
// which moves a mean by 10^-5 of the error's rms (the tests' bound: 0.1). The instruction that
// rounds ties to even takes two slots of the port that exponentials wait for: 4 to 7 % of the whole
// pass.
class Bf16Rounder {
 public:
  TILEWISE_INLINE Bf16Rounder()
      : half_(_mm512_set1_epi32(0x8000)),
        upper_(_mm512_broadcast_i32x4(
            _mm_setr_epi8(2, 3, -1, -1, 6, 7, -1, -1, 10, 11, -1, -1, 14, 15, -1, -1))) {}
  // The bf16 in the upper half of every word.
  TILEWISE_INLINE __m512i rounded(Vec<float> x) const {
    return _mm512_add_epi32(__m512i(x.v), half_);
  }
  // Words of what rounded() gave, in one operation.
  TILEWISE_INLINE __m512i paired(__m512i even, __m512i odd) const {
    return _mm512_mask_shuffle_epi8(odd, 0x3333333333333333, even, upper_);
  }
  TILEWISE_INLINE __m512i words(Vec<float> even, Vec<float> odd) const {
    return paired(rounded(even), rounded(odd));
  }
  TILEWISE_INLINE void store(Vec<float> even, Vec<float> odd, std::uint32_t* to) const {
    _mm512_storeu_si512(to, words(even, odd));
  }
  // What rounding leaves: sixteen bits of a number are in the two together.
  TILEWISE_INLINE Vec<float> remainder(Vec<float> x) const { return x - upper_half(rounded(x)); }
  // The words of what store() rounds off.
  TILEWISE_INLINE void store_remainder(Vec<float> even, Vec<float> odd, std::uint32_t* to) const {
    store(remainder(even), remainder(odd), to);
  }
  TILEWISE_INLINE static Vec<float> upper_half(__m512i words) {
    return Vec<float>(Vec<float>::Native(
        _mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xFFFF0000)))));
  }
  TILEWISE_INLINE static Vec<float> lower_half(__m512i words) {
    return Vec<float>(Vec<float>::Native(_mm512_slli_epi32(words, 16)));
  }

 private:
  __m512i half_;
  __m512i upper_;  // the upper half of every word, in its lower half
};

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AMX
