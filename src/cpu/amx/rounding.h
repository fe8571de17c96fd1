// Rounding of fp32 to pairs of bf16.
#pragma once

#include "cpu/simd/vector.h"

#if TILEWISE_HAS_AMX

namespace tilewise::cpu::TILEWISE_TARGET {

// Rounds two registers to the nearest bf16 and joins them to words (low half: even, high half:
// odd). It rounds by integer addition, ties away from zero. One fp32 probability in 65536 is a tie,
// and half of these are rounded differently than to even, which moves a mean by 10^-5 of the
// error's rms (the bound of the tests is 0.1). The instruction that rounds ties to even takes two
// slots of the port that exponentials wait for: 4 to 7 % of the whole pass.
class Bf16Rounder {
 public:
  TILEWISE_INLINE Bf16Rounder()
      : half_(_mm512_set1_epi32(0x8000)),
        upper_(_mm512_broadcast_i32x4(
            _mm_setr_epi8(2, 3, -1, -1, 6, 7, -1, -1, 10, 11, -1, -1, 14, 15, -1, -1))) {}
  // Returns the bf16 in the upper half of every word.
  TILEWISE_INLINE __m512i rounded(Vec<float> x) const {
    return _mm512_add_epi32(__m512i(x.v), half_);
  }
  // Joins two results of rounded(), in one operation.
  TILEWISE_INLINE __m512i paired(__m512i even, __m512i odd) const {
    return _mm512_mask_shuffle_epi8(odd, 0x3333333333333333, even, upper_);
  }
  TILEWISE_INLINE __m512i words(Vec<float> even, Vec<float> odd) const {
    return paired(rounded(even), rounded(odd));
  }
  TILEWISE_INLINE void store(Vec<float> even, Vec<float> odd, std::uint32_t* to) const {
    _mm512_storeu_si512(to, words(even, odd));
  }
  // The rounding error. The rounded number and the rounded remainder together hold sixteen bits.
  TILEWISE_INLINE Vec<float> remainder(Vec<float> x) const { return x - upper_half(rounded(x)); }
  // Stores the words of the remainders.
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
  __m512i upper_;  // indices: the upper half of every word, for its lower half
};

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AMX
