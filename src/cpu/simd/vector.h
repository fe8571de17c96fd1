// The SIMD vocabulary: Vec<T> is one register of float or double lanes of the instruction set that
// the including file is compiled for. It is built on the compiler's vector type; intrinsics appear
// only where that type has no operator for an instruction.
//
// Everything in src/cpu that includes this file belongs to a namespace of its target and is always
// inlined or local to it, so that the linker never merges the code of two targets.
#pragma once

#include <utility>

#include "math/scalar.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// The macro of g++, and that of clang 14.
#if defined(__AMX_BF16__) || defined(__AMXBF16__)
#define TILEWISE_HAS_AMX 1
#else
#define TILEWISE_HAS_AMX 0
#endif

// AVX512-BF16 has vdpbf16ps, which adds two products of bf16 to a sum in every 32-bit lane.
#if defined(__AVX512BF16__)
#define TILEWISE_HAS_AVX512_BF16 1
#else
#define TILEWISE_HAS_AVX512_BF16 0
#endif

#ifndef TILEWISE_TARGET
#error "TILEWISE_TARGET must name the instruction set: this file is compiled once per target"
#endif

namespace tilewise::cpu::TILEWISE_TARGET {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
inline constexpr int kRegisters = 32;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
inline constexpr int kRegisters = 16;
#elif defined(__aarch64__)
inline constexpr int kVectorBytes = 16;
inline constexpr int kRegisters = 32;
#else
inline constexpr int kVectorBytes = 16;
inline constexpr int kRegisters = 16;
#endif

// The native registers of a lane type. They are spelled out for each type because g++ drops
// vector_size from a dependent type.
template <class T>
struct Registers;
template <>
struct Registers<float> {
  typedef float Native __attribute__((vector_size(kVectorBytes)));
  typedef std::int32_t Bits __attribute__((vector_size(kVectorBytes)));
  typedef std::uint32_t Unsigned __attribute__((vector_size(kVectorBytes)));
  static constexpr int kMantissaBits = 23;
  static constexpr std::uint32_t kBias = 127;
};
template <>
struct Registers<double> {
  typedef double Native __attribute__((vector_size(kVectorBytes)));
  typedef std::int64_t Bits __attribute__((vector_size(kVectorBytes)));
  typedef std::uint64_t Unsigned __attribute__((vector_size(kVectorBytes)));
  static constexpr int kMantissaBits = 52;
  static constexpr std::uint64_t kBias = 1023;
};

// Two bf16 that are neighbours along a sum, the first one in the low half. Sums of their products
// are float.
using Bf16Pair = std::uint32_t;
template <>
struct Registers<Bf16Pair> {
  typedef Bf16Pair Native __attribute__((vector_size(kVectorBytes)));
};

// The type of the sums of products of operands E, and how many numbers one operand holds.
template <class E>
struct Operand {
  using Sum = E;
  static constexpr int kNumbers = 1;
};
template <>
struct Operand<Bf16Pair> {
  using Sum = float;
  static constexpr int kNumbers = 2;
};
template <class E>
using SumOf = typename Operand<E>::Sum;
// The number of operands that hold `numbers` numbers.
template <class E>
TILEWISE_INLINE std::int64_t operand_count(std::int64_t numbers) {
  return (numbers + Operand<E>::kNumbers - 1) / Operand<E>::kNumbers;
}

// The first number of the operand that holds number n.
template <class E>
TILEWISE_INLINE std::int64_t align_to_operand(std::int64_t n) {
  return n / Operand<E>::kNumbers * Operand<E>::kNumbers;
}

template <class T>
struct Mask {
  typename Registers<T>::Bits v;  // per lane: all bits or none
};

template <class T>
struct Vec {
  using Native = typename Registers<T>::Native;
  static constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));
  Native v;

  Vec() = default;
  TILEWISE_INLINE explicit Vec(Native native) : v(native) {}
  TILEWISE_INLINE explicit Vec(T x) : v(x - Native{}) {}  // in all lanes

  TILEWISE_INLINE static Vec load(const T* from) {
    Vec result;
    __builtin_memcpy(&result.v, from, sizeof(Native));
    return result;
  }
  TILEWISE_INLINE void store(T* to) const { __builtin_memcpy(to, &v, sizeof(Native)); }

  // 0, 1, 2, ...
  TILEWISE_INLINE static Vec iota() {
    Vec result;
    for (int i = 0; i < kLanes; ++i) result.v[i] = static_cast<T>(i);
    return result;
  }
};

template <class T>
TILEWISE_INLINE Vec<T> operator+(Vec<T> a, Vec<T> b) {
  return Vec<T>(a.v + b.v);
}
template <class T>
TILEWISE_INLINE Vec<T> operator-(Vec<T> a, Vec<T> b) {
  return Vec<T>(a.v - b.v);
}
template <class T>
TILEWISE_INLINE Vec<T> operator-(Vec<T> a) {
  return Vec<T>(-a.v);
}
template <class T>
TILEWISE_INLINE Vec<T> operator*(Vec<T> a, Vec<T> b) {
  return Vec<T>(a.v * b.v);
}
template <class T>
TILEWISE_INLINE Vec<T> operator/(Vec<T> a, Vec<T> b) {
  return Vec<T>(a.v / b.v);
}
template <class T>
TILEWISE_INLINE Mask<T> operator<(Vec<T> a, Vec<T> b) {
  return {a.v < b.v};
}
template <class T>
TILEWISE_INLINE Mask<T> operator<=(Vec<T> a, Vec<T> b) {
  return {a.v <= b.v};
}
template <class T>
TILEWISE_INLINE Mask<T> operator>(Vec<T> a, Vec<T> b) {
  return {a.v > b.v};
}
template <class T>
TILEWISE_INLINE Mask<T> operator==(Vec<T> a, Vec<T> b) {
  return {a.v == b.v};
}
template <class T>
TILEWISE_INLINE Mask<T> operator&(Mask<T> a, Mask<T> b) {
  return {a.v & b.v};
}

template <class T>
TILEWISE_INLINE Mask<T> operator|(Mask<T> a, Mask<T> b) {
  return {a.v | b.v};
}

template <class T>
TILEWISE_INLINE Vec<T> select(Mask<T> mask, Vec<T> a, Vec<T> b) {
  return Vec<T>(mask.v ? a.v : b.v);
}

// Returns true if any lane is set.
template <class T>
TILEWISE_INLINE bool any_lane(Mask<T> mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(__m512i(mask.v), __m512i(mask.v)) != 0;
#elif defined(__AVX2__)
  return _mm256_testz_si256(__m256i(mask.v), __m256i(mask.v)) == 0;
#else
  bool any = false;
  for (int i = 0; i < kVectorBytes / static_cast<int>(sizeof(T)); ++i) any = any || mask.v[i] != 0;
  return any;
#endif
}

// a > b ? a : b, which is b where one of them is NaN.
template <class T>
TILEWISE_INLINE Vec<T> maximum(Vec<T> a, Vec<T> b) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    return Vec<T>(typename Vec<T>::Native(_mm512_max_ps(__m512(a.v), __m512(b.v))));
  if constexpr (sizeof(T) == 8)
    return Vec<T>(typename Vec<T>::Native(_mm512_max_pd(__m512d(a.v), __m512d(b.v))));
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4)
    return Vec<T>(typename Vec<T>::Native(_mm256_max_ps(__m256(a.v), __m256(b.v))));
  if constexpr (sizeof(T) == 8)
    return Vec<T>(typename Vec<T>::Native(_mm256_max_pd(__m256d(a.v), __m256d(b.v))));
#endif
  return select(a > b, a, b);
}

template <class T>
TILEWISE_INLINE Vec<T> absolute(Vec<T> a) {
  return select(a < Vec<T>(T(0)), -a, a);
}

// a < b ? a : b, which is b where one of them is NaN.
template <class T>
TILEWISE_INLINE Vec<T> minimum(Vec<T> a, Vec<T> b) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    return Vec<T>(typename Vec<T>::Native(_mm512_min_ps(__m512(a.v), __m512(b.v))));
  if constexpr (sizeof(T) == 8)
    return Vec<T>(typename Vec<T>::Native(_mm512_min_pd(__m512d(a.v), __m512d(b.v))));
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4)
    return Vec<T>(typename Vec<T>::Native(_mm256_min_ps(__m256(a.v), __m256(b.v))));
  if constexpr (sizeof(T) == 8)
    return Vec<T>(typename Vec<T>::Native(_mm256_min_pd(__m256d(a.v), __m256d(b.v))));
#endif
  return select(a < b, a, b);
}

// a * b + c, with one rounding where the target has FMA. Contraction is off for these files, so
// that a product and a sum are fused nowhere else.
template <class T>
TILEWISE_INLINE Vec<T> multiply_add(Vec<T> a, Vec<T> b, Vec<T> c) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    return Vec<T>(typename Vec<T>::Native(_mm512_fmadd_ps(__m512(a.v), __m512(b.v), __m512(c.v))));
  } else {
    return Vec<T>(
        typename Vec<T>::Native(_mm512_fmadd_pd(__m512d(a.v), __m512d(b.v), __m512d(c.v))));
  }
#elif defined(__FMA__)
  if constexpr (sizeof(T) == 4) {
    return Vec<T>(typename Vec<T>::Native(_mm256_fmadd_ps(__m256(a.v), __m256(b.v), __m256(c.v))));
  } else {
    return Vec<T>(
        typename Vec<T>::Native(_mm256_fmadd_pd(__m256d(a.v), __m256d(b.v), __m256d(c.v))));
  }
#elif defined(__aarch64__)
  if constexpr (sizeof(T) == 4) {
    return Vec<T>(
        typename Vec<T>::Native(vfmaq_f32(float32x4_t(c.v), float32x4_t(a.v), float32x4_t(b.v))));
  } else {
    return Vec<T>(
        typename Vec<T>::Native(vfmaq_f64(float64x2_t(c.v), float64x2_t(a.v), float64x2_t(b.v))));
  }
#else
  return a * b + c;
#endif
}

#if TILEWISE_HAS_AVX512_BF16
// c + both products of the pairs. Rounds to nearest even; denormals count as zeros, whatever the
// mode of the thread is.
TILEWISE_INLINE Vec<float> multiply_add(Vec<Bf16Pair> a, Vec<Bf16Pair> b, Vec<float> c) {
  return Vec<float>(
      Vec<float>::Native(_mm512_dpbf16_ps(__m512(c.v), __m512bh(a.v), __m512bh(b.v))));
}
#endif

// a * b + c with one rounding on every target. Without FMA the product is split exactly (Dekker
// 1971); |a| and |b| must be below the square root of the range.
template <class T>
TILEWISE_INLINE Vec<T> fused_multiply_add(Vec<T> a, Vec<T> b, Vec<T> c) {
#if defined(__FMA__) || defined(__AVX512F__) || defined(__aarch64__)
  return multiply_add(a, b, c);
#else
  const Vec<T> splitter(sizeof(T) == 4 ? T(4097) : T(134217729));  // 2^12 + 1, 2^27 + 1
  const Vec<T> a_high = splitter * a - (splitter * a - a);
  const Vec<T> b_high = splitter * b - (splitter * b - b);
  const Vec<T> a_low = a - a_high;
  const Vec<T> b_low = b - b_high;
  const Vec<T> product = a * b;
  const Vec<T> lost =
      ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low;
  return (product + c) + lost;
#endif
}

// 2^n for an integer n within the normal range. The result for a NaN is unspecified.
template <class T>
TILEWISE_INLINE Vec<T> power_of_two(Vec<T> n) {
  using Bits = typename Registers<T>::Unsigned;
  // Adding 1.5 * 2^m leaves n in the low bits of the mantissa; the bits above it are shifted out.
  const Bits integers = Bits((n + Vec<T>(math::Limits<T>::kRoundingMagic)).v);
  return Vec<T>(
      typename Vec<T>::Native((integers + Registers<T>::kBias) << Registers<T>::kMantissaBits));
}

// The number whose sign and exponent are the low bits of the mantissa of x.
template <class T>
TILEWISE_INLINE Vec<T> power_of_bits(Vec<T> x) {
  using Bits = typename Registers<T>::Unsigned;
  return Vec<T>(typename Vec<T>::Native(Bits(x.v) << Registers<T>::kMantissaBits));
}

#if defined(__AVX512F__)
// mantissa * 2^n in one instruction, exact into the denormals.
template <class T>
TILEWISE_INLINE Vec<T> scale_exponent(Vec<T> mantissa, Vec<T> n) {
  if constexpr (sizeof(T) == 4) {
    return Vec<T>(typename Vec<T>::Native(_mm512_scalef_ps(__m512(mantissa.v), __m512(n.v))));
  } else {
    return Vec<T>(typename Vec<T>::Native(_mm512_scalef_pd(__m512d(mantissa.v), __m512d(n.v))));
  }
}

// mantissa * 2^n where x >= lowest or x is NaN, and 0 elsewhere. The mask of the instruction
// selects, so that lanes that become zero do not underflow.
template <class T>
TILEWISE_INLINE Vec<T> scale_exponent_from(Vec<T> mantissa, Vec<T> n, Vec<T>, Vec<T> x,
                                           Vec<T> lowest) {
  if constexpr (sizeof(T) == 4) {
    const __mmask16 kept = _mm512_cmp_ps_mask(__m512(x.v), __m512(lowest.v), _CMP_NLT_UQ);
    return Vec<T>(
        typename Vec<T>::Native(_mm512_maskz_scalef_ps(kept, __m512(mantissa.v), __m512(n.v))));
  } else {
    const __mmask8 kept = _mm512_cmp_pd_mask(__m512d(x.v), __m512d(lowest.v), _CMP_NLT_UQ);
    return Vec<T>(
        typename Vec<T>::Native(_mm512_maskz_scalef_pd(kept, __m512d(mantissa.v), __m512d(n.v))));
  }
}
#endif

// One step of transpose(): lanes whose number has bit kBit change places with those of the register
// kBit further on.
template <class T, int kBit, int... kLane>
TILEWISE_INLINE void exchange(Vec<T>& a, Vec<T>& b, std::integer_sequence<int, kLane...>) {
  constexpr int kLanes = Vec<T>::kLanes;
  const Vec<T> low(
      __builtin_shufflevector(a.v, b.v, ((kLane & kBit) ? kLanes + kLane - kBit : kLane)...));
  const Vec<T> high(
      __builtin_shufflevector(a.v, b.v, ((kLane & kBit) ? kLanes + kLane : kLane + kBit)...));
  a = low;
  b = high;
}

// Transposes a square of kLanes registers in place, in log2(kLanes) steps (Eklundh 1972).
template <class T, int kBit = 1>
TILEWISE_INLINE void transpose(Vec<T> (&rows)[Vec<T>::kLanes]) {
  constexpr int kLanes = Vec<T>::kLanes;
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kBit) == 0) {
      exchange<T, kBit>(rows[i], rows[i + kBit], std::make_integer_sequence<int, kLanes>{});
    }
  }
  if constexpr (2 * kBit < kLanes) transpose<T, 2 * kBit>(rows);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET

template <class T>
struct tilewise::math::LaneType<tilewise::cpu::TILEWISE_TARGET::Vec<T>> {
  using Type = T;
};
