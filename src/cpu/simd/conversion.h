// Loads and stores of every floating storage type (fp64, fp32, bf16, fp16), converted to and from
// registers of the arithmetic type, float or double.
#pragma once

#include <type_traits>

#include "cpu/simd/vector.h"
#include "math/number.h"
#include "problem/problem.h"

namespace tilewise::cpu::TILEWISE_TARGET {

using problem::View;

// Calls function(S{}) with the storage type S of a floating dtype.
template <class Function>
TILEWISE_INLINE void with_storage(std::int32_t dtype, Function function) {
  switch (dtype) {
    case TILEWISE_FP64:
      return function(double{});
    case TILEWISE_FP32:
      return function(float{});
    case TILEWISE_BF16:
      return function(math::BFloat16{});
    default:
      return function(math::Float16{});
  }
}

template <class T>
inline constexpr std::int32_t kArithmeticDtype = sizeof(T) == 8 ? TILEWISE_FP64 : TILEWISE_FP32;

// A bf16 is the upper half of a float. The code uses intrinsics because g++ widens a vector of
// 16-bit lanes in halves.
TILEWISE_INLINE Vec<float> load_bfloat16(const math::BFloat16* from) {
#if defined(__AVX512F__)
  __m256i halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  return Vec<float>(Vec<float>::Native(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16)));
#elif defined(__AVX2__)
  __m128i halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  return Vec<float>(Vec<float>::Native(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16)));
#elif defined(__aarch64__)
  uint16x4_t halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  return Vec<float>(Vec<float>::Native(vshll_n_u16(halves, 16)));
#elif defined(__SSE2__)
  __m128i halves = _mm_setzero_si128();
  __builtin_memcpy(&halves, from, 8);
  return Vec<float>(Vec<float>::Native(_mm_unpacklo_epi16(_mm_setzero_si128(), halves)));
#else
  float numbers[Vec<float>::kLanes];
  for (int i = 0; i < Vec<float>::kLanes; ++i) numbers[i] = math::to_float(from[i]);
  return Vec<float>::load(numbers);
#endif
}

TILEWISE_INLINE Vec<float> load_float16(const math::Float16* from) {
#if defined(__AVX512F__)
  __m256i halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  return Vec<float>(Vec<float>::Native(_mm512_cvtph_ps(halves)));
#elif defined(__F16C__)
  __m128i halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  return Vec<float>(Vec<float>::Native(_mm256_cvtph_ps(halves)));
#elif defined(__aarch64__)
  float16x4_t halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  return Vec<float>(Vec<float>::Native(vcvt_f32_f16(halves)));
#elif defined(__SSE2__)  // math::to_float() in every lane
  __m128i halves = _mm_setzero_si128();
  __builtin_memcpy(&halves, from, 8);
  const __m128i words = _mm_unpacklo_epi16(halves, _mm_setzero_si128());
  const __m128i sign = _mm_slli_epi32(_mm_and_si128(words, _mm_set1_epi32(0x8000)), 16);
  const __m128i magnitude = _mm_slli_epi32(_mm_and_si128(words, _mm_set1_epi32(0x7fff)), 13);
  const __m128i moved = _mm_add_epi32(magnitude, _mm_set1_epi32(0x38000000));
  const __m128i above = _mm_add_epi32(moved, _mm_set1_epi32(0x00800000));
  const __m128i lifted =
      _mm_castps_si128(_mm_sub_ps(_mm_castsi128_ps(above), _mm_set1_ps(0x1p-14f)));
  const __m128i denormal = _mm_cmplt_epi32(magnitude, _mm_set1_epi32(0x400 << 13));
  const __m128i finite =
      _mm_or_si128(_mm_and_si128(denormal, lifted), _mm_andnot_si128(denormal, moved));
  const __m128i not_finite = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32((0x7c00 << 13) - 1));
  const __m128i special = _mm_or_si128(magnitude, _mm_set1_epi32(0x7f800000));
  const __m128i chosen =
      _mm_or_si128(_mm_and_si128(not_finite, special), _mm_andnot_si128(not_finite, finite));
  return Vec<float>(Vec<float>::Native(_mm_or_si128(sign, chosen)));
#else
  float numbers[Vec<float>::kLanes];
  for (int i = 0; i < Vec<float>::kLanes; ++i) numbers[i] = math::to_float(from[i]);
  return Vec<float>::load(numbers);
#endif
}

// Loads kLanes numbers of storage type S and converts them.
template <class T, class S>
TILEWISE_INLINE Vec<T> load_converted(const S* from) {
  if constexpr (std::is_same_v<T, S>) {
    return Vec<T>::load(from);
  } else if constexpr (std::is_same_v<T, float> && std::is_same_v<S, math::BFloat16>) {
    return load_bfloat16(from);
  } else if constexpr (std::is_same_v<T, float> && std::is_same_v<S, math::Float16>) {
    return load_float16(from);
  } else {
    T numbers[Vec<T>::kLanes];
    for (int i = 0; i < Vec<T>::kLanes; ++i) numbers[i] = math::load<T>(from[i]);
    return Vec<T>::load(numbers);
  }
}

// Rounds to nearest even by integer arithmetic, which keeps denormals; the bf16 instructions would
// flush them. A NaN keeps its upper half and becomes quiet.
TILEWISE_INLINE void store_bfloat16(Vec<float> x, math::BFloat16* to) {
  typedef std::uint16_t Halves __attribute__((vector_size(kVectorBytes / 2)));
  typedef std::uint32_t Words __attribute__((vector_size(kVectorBytes)));
  const Words bits = Words(x.v);
  const Words rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  const Words quiet = (bits >> 16) | 0x40;
  const Halves halves = __builtin_convertvector(x.v == x.v ? rounded : quiet, Halves);
  __builtin_memcpy(to, &halves, sizeof(halves));
}

template <class T, class S>
TILEWISE_INLINE void store_converted(Vec<T> x, S* to) {
  if constexpr (std::is_same_v<T, S>) {
    x.store(to);
  } else if constexpr (std::is_same_v<T, float> && std::is_same_v<S, math::BFloat16>) {
    store_bfloat16(x, to);
#if defined(__AVX512F__)
  } else if constexpr (std::is_same_v<T, float> && std::is_same_v<S, math::Float16>) {
    const __m256i halves = _mm512_cvtps_ph(__m512(x.v), _MM_FROUND_TO_NEAREST_INT);
    __builtin_memcpy(to, &halves, sizeof(halves));
#endif
  } else {
    T numbers[Vec<T>::kLanes];
    x.store(numbers);
    for (int i = 0; i < Vec<T>::kLanes; ++i) math::store(numbers[i], to + i);
  }
}

// Loads and stores one number of a statistics view (lse, dlse, delta).
template <class T>
TILEWISE_INLINE T load_statistic(const View& view, std::int64_t b, std::int64_t h,
                                 std::int64_t row) {
  const std::int64_t at = view.offset(b, h, row);
  return view.dtype == TILEWISE_FP64 ? static_cast<T>(static_cast<const double*>(view.data)[at])
                                     : static_cast<T>(static_cast<const float*>(view.data)[at]);
}
template <class T>
TILEWISE_INLINE void store_statistic(const View& view, std::int64_t b, std::int64_t h,
                                     std::int64_t row, T value) {
  const std::int64_t at = view.offset(b, h, row);
  if (view.dtype == TILEWISE_FP64) {
    static_cast<double*>(view.data)[at] = static_cast<double>(value);
  } else {
    static_cast<float*>(view.data)[at] = static_cast<float>(value);
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
