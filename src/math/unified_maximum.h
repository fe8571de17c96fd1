// When one anchor, phi, may stand for the maxima of all splits of a row (FlashDecoding++, Hong et
// al., arXiv 2311.01282, section 3): exponents are then e^(score - phi), and states merge by plain
// sums.
//
// The paper bounds every score, a < score - phi < b. Here the sum of a split and its output say
// whether the exponentials were in range, so that no maximum is formed at all:
//
//   sum     A row's largest prob is between sum / n and sum, for n keys. At least 2^-30: then probs
//           down to 2^-96 of the largest are normal floats, and those below do not count. At most
//           2^60. Overflow and NaN make the sum infinite or NaN, which is no safe sum either. Nor
//           is 0, unless the row sees no key of the split: all its probs have vanished.
//   output  Every element is at most 2^100, far from overflow, in the merge too; a NaN is not. The
//           largest is at least 2^-60: otherwise products of small probs with small values may have
//           been denormal. An output of zeros is treated as such.
//
// Probs that are rounded to fp16 before they meet the values, as on a GPU, have a narrower range:
//
//   sum     At most 2^15, so that no prob overflows. At least 2^-13 n: the rounding error of a
//           denormal prob is 2^-25 at most, that of n of them then 2^-12 of the sum.
//
// A split outside of these bounds is computed again with its own maximum, so that the result is
// exact for every input; nothing but time depends on phi.
#pragma once

#include "math/exp2.h"

namespace tilewise::math {

// Returns exp(score - phi), and at most 2^62, which no safe sum contains. NaN stays NaN.
template <class T>
TILEWISE_INLINE T unified_prob(T score, T phi, const ScaleLog2<T>& scale_log2 = ScaleLog2<T>()) {
  const T highest = T(Lane<T>(62)) / scale_log2.factor;
  return exp2_of_product(minimum(highest, score - phi), scale_log2);
}

template <class T>
TILEWISE_INLINE bool is_safe_sum(T sum) {
  return sum >= T(0x1p-30) && sum <= T(0x1p60);
}

// The same where probs are rounded to fp16. keys: of the split.
template <class T>
TILEWISE_INLINE bool is_safe_sum_of_fp16(T sum, T keys) {
  return sum >= T(0x1p-13) * keys && sum <= T(0x1p15);
}

inline constexpr double kSmallestSafeOut = 0x1p-60;
inline constexpr double kLargestSafeOut = 0x1p100;

}  // namespace tilewise::math
