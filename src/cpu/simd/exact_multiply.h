// Multiplication by a large power of two, fast for denormal numbers too.
#pragma once

#include <type_traits>

#include "cpu/simd/vector.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// The integers that have the bits of a T.
template <class T>
struct BitsOf {
  using Word = std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>;
  static constexpr Word kAbsolute = sizeof(T) == 8 ? Word(INT64_MAX) : Word(INT32_MAX);
  static constexpr Word kSmallestNormal = Word(1) << Registers<T>::kMantissaBits;
};

// Denormal numbers are the lanes below kLimit of a signed order in which zeros are the largest: |x|
// minus its least unit, so that zeros wrap around.
template <class T>
struct SmallnessOf {
  using Bits = typename Registers<T>::Bits;
  using Word = typename BitsOf<T>::Word;
  static constexpr Word kLowest = sizeof(T) == 8 ? Word(INT64_MIN) : Word(INT32_MIN);
  static constexpr Word kLimit = kLowest + BitsOf<T>::kSmallestNormal - 1;

  TILEWISE_INLINE static Bits of(Bits absolute) {
    using Unsigned = typename Registers<T>::Unsigned;
    using UnsignedWord = std::make_unsigned_t<Word>;
    return Bits(Unsigned(absolute) + (static_cast<UnsignedWord>(kLowest) - 1));
  }
};

template <class T>
TILEWISE_INLINE Mask<T> denormal_lanes(Vec<T> x) {
  using Bits = typename Registers<T>::Bits;
  return {SmallnessOf<T>::of(Bits(x.v) & BitsOf<T>::kAbsolute) < SmallnessOf<T>::kLimit};
}

// The lanes that hold a number below `limit`, a positive power of two, and not 0.
template <class T>
TILEWISE_INLINE Mask<T> small_lanes(Vec<T> x, T limit) {
  using Bits = typename Registers<T>::Bits;
  using Word = typename BitsOf<T>::Word;
  const Word below = SmallnessOf<T>::kLowest + (__builtin_bit_cast(Word, limit) - 1);
  return {SmallnessOf<T>::of(Bits(x.v) & BitsOf<T>::kAbsolute) < below};
}

// x * factor, for a power of two that is at least 1 / (unit of the mantissa), without an operation
// on a denormal number, which would take a hundred cycles: its bits are an integer, and become a
// floating-point number.
template <class T>
TILEWISE_INLINE Vec<T> multiply_denormals(Vec<T> x, T factor) {
  using Bits = typename Registers<T>::Bits;
  // The unit of the integers is 2^-149, or 2^-1074 in two steps.
  const double scaled = sizeof(T) == 8 ? static_cast<double>(factor) * 0x1p-537 * 0x1p-537
                                       : static_cast<double>(factor) * 0x1p-149;
  const Mask<T> denormal = denormal_lanes(x);
  const Bits integers = Bits(x.v) & BitsOf<T>::kAbsolute;
  const Vec<T> lifted = Vec<T>(__builtin_convertvector(integers, typename Vec<T>::Native)) *
                        Vec<T>(static_cast<T>(scaled));
  const Vec<T> normal = select(denormal, Vec<T>(T(0)), x) * Vec<T>(factor);
  return select(denormal, select(Mask<T>{Bits(x.v) < 0}, -lifted, lifted), normal);
}
template <class T>
__attribute__((noinline)) Vec<T> multiply_denormals_apart(Vec<T> x, T factor) {
  return multiply_denormals(x, factor);
}

template <class T>
TILEWISE_INLINE bool lifts_denormals(T factor) {
  return __builtin_fabs(static_cast<double>(factor)) >=
         static_cast<double>(BitsOf<T>::kSmallestNormal);
}

// x * factor, for a power of two.
template <class T>
TILEWISE_INLINE Vec<T> multiply_exactly(Vec<T> x, T factor) {
  if (lifts_denormals(factor) && __builtin_expect(any_lane(denormal_lanes(x)), 0))
    return multiply_denormals_apart(x, factor);
  return x * Vec<T>(factor);
}

template <class T>
TILEWISE_INLINE T multiply_exactly(T x, T factor) {
  const auto absolute = __builtin_bit_cast(typename BitsOf<T>::Word, x) & BitsOf<T>::kAbsolute;
  if (absolute == 0 || absolute >= BitsOf<T>::kSmallestNormal) return x * factor;
  return multiply_exactly(Vec<T>(x), factor).v[0];
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
