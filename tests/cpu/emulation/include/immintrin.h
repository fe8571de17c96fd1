// AVX-512 (F, BW, DQ, VL) and AVX512-BF16 in instructions of AVX2, for kernels that are compiled
// without them. It has the intrinsics that src/cpu uses, each by its definition in the Intel
// Intrinsics Guide. The compiler finds this header before its own, which it includes.
#pragma once
#pragma GCC system_header  // include_next; names with an underscore

#include_next <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

// The macros that the sources check.
#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512DQ__ 1
#define __AVX512VL__ 1
#ifdef TILEWISE_EMULATED_AVX512_BF16
#define __AVX512BF16__ 1
#endif
#ifdef TILEWISE_EMULATED_AMX
#define __AMX_BF16__ 1
#endif

// They are calls: inlined, the kernels would take ten minutes to compile.
#define TILEWISE_EMULATED static __attribute__((noinline, unused))

namespace tilewise::emulation {
namespace {

typedef float Floats __attribute__((vector_size(64)));
typedef std::int8_t Bytes __attribute__((vector_size(64)));
typedef std::uint16_t Halves __attribute__((vector_size(64)));
typedef std::uint32_t Words __attribute__((vector_size(64)));

template <class To, class From>
TILEWISE_EMULATED To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// ---- memory ----

TILEWISE_EMULATED __m512i load(const void* from) {
  __m512i to;
  std::memcpy(&to, from, sizeof(to));
  return to;
}
TILEWISE_EMULATED __m512 load_floats(const void* from) { return bits_as<__m512>(load(from)); }
TILEWISE_EMULATED void store(void* to, const __m512i& from) {
  std::memcpy(to, &from, sizeof(from));
}
TILEWISE_EMULATED void store_floats(void* to, const __m512& from) {
  std::memcpy(to, &from, sizeof(from));
}
TILEWISE_EMULATED void store_aligned(void* to, const __m512i& from) {
  if (reinterpret_cast<std::uintptr_t>(to) % 64 != 0) std::abort();
  store(to, from);
}
// Lanes outside of the mask are neither read nor written.
template <class Vector, class Lane>
TILEWISE_EMULATED Vector load_some(std::uint64_t mask, const void* from) {
  Lane lanes[64 / sizeof(Lane)] = {};
  for (std::size_t i = 0; i < 64 / sizeof(Lane); ++i) {
    if (mask >> i & 1) std::memcpy(&lanes[i], static_cast<const Lane*>(from) + i, sizeof(Lane));
  }
  return bits_as<Vector>(lanes);
}
template <class Lane, class Vector>
TILEWISE_EMULATED void store_some(void* to, std::uint64_t mask, const Vector& from) {
  Lane lanes[64 / sizeof(Lane)];
  std::memcpy(lanes, &from, sizeof(from));
  for (std::size_t i = 0; i < 64 / sizeof(Lane); ++i) {
    if (mask >> i & 1) std::memcpy(static_cast<Lane*>(to) + i, &lanes[i], sizeof(Lane));
  }
}

// ---- permutations ----

TILEWISE_EMULATED __m512i set_words(int a, int b, int c, int d, int e, int f, int g, int h, int i,
                                    int j, int k, int l, int m, int n, int o, int p) {
  const int words[16] = {a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p};
  return load(words);
}
TILEWISE_EMULATED __m512i no_words() { return __m512i{}; }
TILEWISE_EMULATED __m512 no_floats() { return __m512{}; }
TILEWISE_EMULATED __m512i same_words(int x) {
  return bits_as<__m512i>(Words{} + static_cast<std::uint32_t>(x));
}
TILEWISE_EMULATED __m512i same_halves(short x) {
  const auto bits = static_cast<std::uint16_t>(x);
  return same_words(static_cast<int>(bits * 0x10001u));
}
TILEWISE_EMULATED __m512 same_floats(float x) { return bits_as<__m512>(x - Floats{}); }

TILEWISE_EMULATED __m256i half_of(const __m512i& from, int number) {
  __m256i halves[2];
  std::memcpy(halves, &from, sizeof(from));
  return halves[number];
}
TILEWISE_EMULATED __m256i lower_half(const __m512i& from) { return half_of(from, 0); }
// The upper part that a cast leaves undefined is not zero here, so that its use shows.
TILEWISE_EMULATED __m512i widened(const __m128i& from) {
  __m512i to = same_words(static_cast<int>(0xDEADBEEF));
  std::memcpy(&to, &from, sizeof(from));
  return to;
}
TILEWISE_EMULATED __m512i broadcast_some(const __m512i& source, unsigned mask,
                                         const __m128i& from) {
  std::uint32_t words[16];
  std::uint32_t four[4];
  std::memcpy(words, &source, sizeof(words));
  std::memcpy(four, &from, sizeof(four));
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) words[i] = four[i % 4];
  }
  return load(words);
}
TILEWISE_EMULATED __m512i broadcast(const __m128i& from) {
  return broadcast_some(same_words(0), 0xFFFF, from);
}
// Interleaves the lower or the upper halves of the lanes of each 128 bits.
template <class Lane, int kUpper>
TILEWISE_EMULATED __m512i unpacked(const __m512i& a, const __m512i& b) {
  constexpr int kLanes = 16 / static_cast<int>(sizeof(Lane));
  Lane from[2][4 * kLanes];
  Lane to[4 * kLanes];
  std::memcpy(from[0], &a, sizeof(a));
  std::memcpy(from[1], &b, sizeof(b));
  for (int i = 0; i < 4 * kLanes; ++i)
    to[i] = from[i % 2][i / kLanes * kLanes + i % kLanes / 2 + kUpper * kLanes / 2];
  return load(to);
}
TILEWISE_EMULATED __m512i permuted_halves(const __m512i& a, const __m512i& order,
                                          const __m512i& b) {
  std::uint16_t from[64];
  std::uint16_t places[32];
  std::uint16_t to[32];
  std::memcpy(from, &a, sizeof(a));
  std::memcpy(from + 32, &b, sizeof(b));
  std::memcpy(places, &order, sizeof(order));
  for (int i = 0; i < 32; ++i) to[i] = from[places[i] % 64];
  return load(to);
}
TILEWISE_EMULATED __m512i permuted_halves_of_one(const __m512i& order, const __m512i& a) {
  return permuted_halves(a, order, a);
}
TILEWISE_EMULATED __m512i shuffled_bytes(const __m512i& source, std::uint64_t mask,
                                         const __m512i& a, const __m512i& order) {
  Bytes to = bits_as<Bytes>(source);
  const Bytes from = bits_as<Bytes>(a);
  const Bytes places = bits_as<Bytes>(order);
  for (int i = 0; i < 64; ++i) {
    if ((mask >> i & 1) == 0) continue;
    to[i] = places[i] < 0 ? std::int8_t{0} : from[i / 16 * 16 + places[i] % 16];
  }
  return bits_as<__m512i>(to);
}

// ---- integers ----

TILEWISE_EMULATED __m512i shifted_words(const __m512i& x, unsigned by) {
  return bits_as<__m512i>(bits_as<Words>(x) << by);
}
template <class Vector>
TILEWISE_EMULATED __m512i sum_of(const __m512i& a, const __m512i& b) {
  return bits_as<__m512i>(bits_as<Vector>(a) + bits_as<Vector>(b));
}
TILEWISE_EMULATED __m512i either(const __m512i& a, const __m512i& b) { return a | b; }
TILEWISE_EMULATED __m512i both(const __m512i& a, const __m512i& b) { return a & b; }
TILEWISE_EMULATED __m512i one_of(const __m512i& a, const __m512i& b) { return a ^ b; }
TILEWISE_EMULATED __m512i larger_halves(const __m512i& a, const __m512i& b) {
  const Halves x = bits_as<Halves>(a);
  const Halves y = bits_as<Halves>(b);
  return bits_as<__m512i>(x > y ? x : y);
}
TILEWISE_EMULATED __mmask16 common_words(const __m512i& a, const __m512i& b) {
  const Words both_bits = bits_as<Words>(a) & bits_as<Words>(b);
  unsigned mask = 0;
  for (int i = 0; i < 16; ++i) mask |= (both_bits[i] != 0 ? 1u : 0u) << i;
  return static_cast<__mmask16>(mask);
}
TILEWISE_EMULATED __mmask32 equal_halves(const __m512i& a, const __m512i& b) {
  const auto equal = bits_as<Halves>(a) == bits_as<Halves>(b);
  __mmask32 mask = 0;
  for (int i = 0; i < 32; ++i) mask |= equal[i] != 0 ? __mmask32{1} << i : 0;
  return mask;
}
TILEWISE_EMULATED __m512i words_of(const __m256i& halves) {
  std::uint16_t from[16];
  std::uint32_t to[16];
  std::memcpy(from, &halves, sizeof(halves));
  for (int i = 0; i < 16; ++i) to[i] = from[i];
  return load(to);
}

}  // namespace
}  // namespace tilewise::emulation

#include "avx512_floats.h"

#undef TILEWISE_EMULATED

// Some of them are macros in the compiler's headers.
#undef _mm512_loadu_si512
#define _mm512_loadu_si512 ::tilewise::emulation::load
#undef _mm512_loadu_ps
#define _mm512_loadu_ps ::tilewise::emulation::load_floats
#undef _mm512_storeu_si512
#define _mm512_storeu_si512 ::tilewise::emulation::store
#undef _mm512_storeu_ps
#define _mm512_storeu_ps ::tilewise::emulation::store_floats
#undef _mm512_store_si512
#define _mm512_store_si512 ::tilewise::emulation::store_aligned
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps ::tilewise::emulation::load_some<__m512, float>
#undef _mm512_maskz_loadu_epi16
#define _mm512_maskz_loadu_epi16 ::tilewise::emulation::load_some<__m512i, std::uint16_t>
#undef _mm512_mask_storeu_epi32
#define _mm512_mask_storeu_epi32 ::tilewise::emulation::store_some<std::uint32_t>
#undef _mm512_mask_storeu_epi16
#define _mm512_mask_storeu_epi16 ::tilewise::emulation::store_some<std::uint16_t>
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps ::tilewise::emulation::store_some<float>
#undef _mm512_setzero_si512
#define _mm512_setzero_si512 ::tilewise::emulation::no_words
#undef _mm512_setzero_ps
#define _mm512_setzero_ps ::tilewise::emulation::no_floats
#undef _mm512_set1_epi32
#define _mm512_set1_epi32 ::tilewise::emulation::same_words
#undef _mm512_set1_epi16
#define _mm512_set1_epi16 ::tilewise::emulation::same_halves
#undef _mm512_set1_ps
#define _mm512_set1_ps ::tilewise::emulation::same_floats
#undef _mm512_setr_epi32
#define _mm512_setr_epi32 ::tilewise::emulation::set_words
#undef _mm512_castsi512_si256
#define _mm512_castsi512_si256 ::tilewise::emulation::lower_half
#undef _mm512_extracti64x4_epi64
#define _mm512_extracti64x4_epi64 ::tilewise::emulation::half_of
#undef _mm512_castsi128_si512
#define _mm512_castsi128_si512 ::tilewise::emulation::widened
#undef _mm512_broadcast_i32x4
#define _mm512_broadcast_i32x4 ::tilewise::emulation::broadcast
#undef _mm512_mask_broadcast_i32x4
#define _mm512_mask_broadcast_i32x4 ::tilewise::emulation::broadcast_some
#undef _mm512_unpacklo_epi16
#define _mm512_unpacklo_epi16 ::tilewise::emulation::unpacked<std::uint16_t, 0>
#undef _mm512_unpackhi_epi16
#define _mm512_unpackhi_epi16 ::tilewise::emulation::unpacked<std::uint16_t, 1>
#undef _mm512_unpacklo_epi32
#define _mm512_unpacklo_epi32 ::tilewise::emulation::unpacked<std::uint32_t, 0>
#undef _mm512_unpackhi_epi32
#define _mm512_unpackhi_epi32 ::tilewise::emulation::unpacked<std::uint32_t, 1>
#undef _mm512_unpacklo_epi64
#define _mm512_unpacklo_epi64 ::tilewise::emulation::unpacked<std::uint64_t, 0>
#undef _mm512_unpackhi_epi64
#define _mm512_unpackhi_epi64 ::tilewise::emulation::unpacked<std::uint64_t, 1>
#undef _mm512_permutex2var_epi16
#define _mm512_permutex2var_epi16 ::tilewise::emulation::permuted_halves
#undef _mm512_permutexvar_epi16
#define _mm512_permutexvar_epi16 ::tilewise::emulation::permuted_halves_of_one
#undef _mm512_mask_shuffle_epi8
#define _mm512_mask_shuffle_epi8 ::tilewise::emulation::shuffled_bytes
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 ::tilewise::emulation::shifted_words
#undef _mm512_add_epi32
#define _mm512_add_epi32 ::tilewise::emulation::sum_of<::tilewise::emulation::Words>
#undef _mm512_add_epi16
#define _mm512_add_epi16 ::tilewise::emulation::sum_of<::tilewise::emulation::Halves>
#undef _mm512_or_si512
#define _mm512_or_si512 ::tilewise::emulation::either
#undef _mm512_and_si512
#define _mm512_and_si512 ::tilewise::emulation::both
#undef _mm512_xor_si512
#define _mm512_xor_si512 ::tilewise::emulation::one_of
#undef _mm512_max_epu16
#define _mm512_max_epu16 ::tilewise::emulation::larger_halves
#undef _mm512_test_epi32_mask
#define _mm512_test_epi32_mask ::tilewise::emulation::common_words
#undef _mm512_cmpeq_epi16_mask
#define _mm512_cmpeq_epi16_mask ::tilewise::emulation::equal_halves
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32 ::tilewise::emulation::words_of
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask ::tilewise::emulation::compared_floats
#undef _mm512_cmp_pd_mask
#define _mm512_cmp_pd_mask ::tilewise::emulation::compared_doubles
#undef _mm512_sub_ps
#define _mm512_sub_ps ::tilewise::emulation::difference
#undef _mm512_mul_ps
#define _mm512_mul_ps ::tilewise::emulation::product
#undef _mm512_abs_ps
#define _mm512_abs_ps ::tilewise::emulation::absolute
#undef _mm512_max_ps
#define _mm512_max_ps ::tilewise::emulation::greater
#undef _mm512_max_pd
#define _mm512_max_pd ::tilewise::emulation::greater_double
#undef _mm512_min_ps
#define _mm512_min_ps ::tilewise::emulation::lesser
#undef _mm512_min_pd
#define _mm512_min_pd ::tilewise::emulation::lesser_double
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps ::tilewise::emulation::fused
#undef _mm512_fmadd_pd
#define _mm512_fmadd_pd ::tilewise::emulation::fused_double
#undef _mm512_fmsub_ps
#define _mm512_fmsub_ps ::tilewise::emulation::fused_difference
#undef _mm512_mask_mov_ps
#define _mm512_mask_mov_ps ::tilewise::emulation::chosen
#undef _mm512_maskz_mov_ps
#define _mm512_maskz_mov_ps ::tilewise::emulation::chosen_or_zero
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps ::tilewise::emulation::of_fp16
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph ::tilewise::emulation::to_fp16
#undef _mm512_scalef_ps
#define _mm512_scalef_ps ::tilewise::emulation::scaled_floats
#undef _mm512_scalef_pd
#define _mm512_scalef_pd ::tilewise::emulation::scaled_doubles
#undef _mm512_maskz_scalef_ps
#define _mm512_maskz_scalef_ps ::tilewise::emulation::scaled_floats_or_zero
#undef _mm512_maskz_scalef_pd
#define _mm512_maskz_scalef_pd ::tilewise::emulation::scaled_doubles_or_zero
#undef _mm512_reduce_ps
#define _mm512_reduce_ps ::tilewise::emulation::reduced
#undef _mm512_cvtneps_pbh
#define _mm512_cvtneps_pbh ::tilewise::emulation::rounded
#undef _mm512_cvtne2ps_pbh
#define _mm512_cvtne2ps_pbh ::tilewise::emulation::rounded_two
#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps ::tilewise::emulation::added_pairs
#undef _mm_dpbf16_ps
#define _mm_dpbf16_ps ::tilewise::emulation::added_word
