// One row of a quantisation: its largest magnitude, and its codes.
#pragma once

#include "cpu/quantise/rounding.h"
#include "cpu/simd/conversion.h"

namespace tilewise::cpu::TILEWISE_TARGET {

inline constexpr std::int32_t kInfinityBits = 0x7f800000;

TILEWISE_INLINE LaneBits larger(LaneBits a, LaneBits b) { return a > b ? a : b; }
TILEWISE_INLINE bool any_set(LaneBits lanes) { return any_lane(Mask<float>{lanes}); }

// Loads up to kLanes numbers; the other lanes are 0.
template <class S>
TILEWISE_INLINE Vec<float> load_part(const S* from, std::int64_t count) {
  constexpr std::int64_t kLanes = Vec<float>::kLanes;
  if (count >= kLanes) return load_converted<float>(from);
  float numbers[kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) numbers[i] = math::load<float>(from[i]);
  return Vec<float>::load(numbers);
}

// Returns the larger of `so_far` and the bits of the finite magnitudes of a row, in each lane.
// Other numbers make `finite` false.
template <class S>
TILEWISE_INLINE LaneBits largest_of_row(const S* row, std::int64_t width, LaneBits so_far,
                                        bool& finite) {
  constexpr std::int64_t kLanes = Vec<float>::kLanes;
  LaneBits largest = so_far;
  std::int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes)
    largest = larger(largest, magnitude_bits(load_converted<float>(row + c)));
  if (c < width) largest = larger(largest, magnitude_bits(load_part(row + c, width - c)));
  if (!any_set(largest >= kInfinityBits)) return largest;
  finite = false;
  for (c = 0, largest = so_far; c < width; c += kLanes) {
    const LaneBits bits = magnitude_bits(load_part(row + c, width - c));
    largest = larger(largest, bits < kInfinityBits ? bits : LaneBits{});
  }
  return largest;
}

// Of bf16 the same in 16-bit lanes: magnitudes are compared as the integers that they are stored
// as, twice as many at a time.
TILEWISE_INLINE LaneBits largest_of_row(const math::BFloat16* row, std::int64_t width,
                                        LaneBits so_far, bool& finite) {
  typedef std::int16_t Halves __attribute__((vector_size(kVectorBytes)));
  constexpr std::int64_t kHalves = kVectorBytes / 2;
  Halves largest = {};
  std::int64_t c = 0;
  for (; c + kHalves <= width; c += kHalves) {
    Halves bits;
    __builtin_memcpy(&bits, row + c, sizeof(bits));
    bits &= 0x7fff;
    largest = bits > largest ? bits : largest;
  }
  const LaneBits pairs = LaneBits(largest);
  const LaneBits most = larger(pairs & 0x7fff0000, pairs << 16);
  if (any_set(most >= kInfinityBits))
    return largest_of_row<math::BFloat16>(row, width, so_far, finite);
  return largest_of_row<math::BFloat16>(row + c, width - c, larger(so_far, most), finite);
}

TILEWISE_INLINE std::uint32_t largest_lane(LaneBits lanes) {
  std::int32_t largest = 0;
  for (int i = 0; i < Vec<float>::kLanes; ++i) largest = math::max(largest, lanes[i]);
  return static_cast<std::uint32_t>(largest);
}

// Turns the numbers of a rotated row that are not finite into NaN.
TILEWISE_INLINE void spread_nan(float* row, std::int64_t width) {
  for (std::int64_t c = 0; c < width; ++c) {
    if (!math::is_finite(row[c])) row[c] = math::float_of(0x7fc00000u);
  }
}

// Returns whether a row of floats holds a number that is not finite.
TILEWISE_INLINE bool has_non_finite(const float* row, std::int64_t width) {
  constexpr std::int64_t kLanes = Vec<float>::kLanes;
  LaneBits largest = {};
  for (std::int64_t c = 0; c < width; c += kLanes)
    largest = larger(largest, magnitude_bits(load_part(row + c, width - c)));
  return any_set(largest >= kInfinityBits);
}

// The numbers that a row may hold: those that round to at most the largest of the format, or any;
// and whether those that saturate are counted.
enum class Range { kSmall, kAny, kCounted };

// Writes the codes of row * inverse. Adds to each lane of `saturated` how many of its numbers did.
template <class Format, Range kRange, class S>
TILEWISE_INLINE void quantise_row(const S* row, std::int64_t width, float inverse, std::uint8_t* to,
                                  LaneBits& saturated) {
  constexpr std::int64_t kLanes = Vec<float>::kLanes;
  const Vec<float> factor(inverse);
  const auto first = static_cast<std::int32_t>(math::first_saturated<Format>());
  const auto codes = [&](Vec<float> x) {
    const Vec<float> scaled = x * factor;
    if constexpr (kRange == Range::kSmall) return codes_of_small<Format>(scaled);
    if constexpr (kRange == Range::kCounted) {
      const LaneBits bits = magnitude_bits(scaled);
      saturated -= (bits >= first) & (bits <= kInfinityBits);
    }
    return codes_of<Format>(scaled);
  };
  std::int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes)
    store_codes(codes(load_converted<float>(row + c)), to + c);
  if (c == width) return;
  std::uint8_t last[kLanes];
  store_codes(codes(load_part(row + c, width - c)), last);
  for (std::int64_t i = 0; c + i < width; ++i) to[c + i] = last[i];
}

// Writes a row of floats in a wider dtype.
template <class S>
TILEWISE_INLINE void convert_row(const float* row, std::int64_t width, S* to) {
  constexpr std::int64_t kLanes = Vec<float>::kLanes;
  std::int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) store_converted(Vec<float>::load(row + c), to + c);
  for (; c < width; ++c) math::store(row[c], to + c);
}

// Writes rows: fp8 of a format, or a wider dtype, which takes rotated rows only.
template <class Format, Range kRange>
struct Coder {
  static constexpr std::int64_t kSize = 1;
  static constexpr bool kReadsInput = true;
  template <class S>
  TILEWISE_INLINE static void write(const S* row, std::int64_t width, float inverse,
                                    std::uint8_t* to, LaneBits& saturated) {
    quantise_row<Format, kRange>(row, width, inverse, to, saturated);
  }
};
template <class S>
struct Wide {
  static constexpr std::int64_t kSize = sizeof(S);
  static constexpr bool kReadsInput = false;
  TILEWISE_INLINE static void write(const float* row, std::int64_t width, float, std::uint8_t* to,
                                    LaneBits&) {
    convert_row(row, width, reinterpret_cast<S*>(to));
  }
};

// Copies bytes past the caches where they can be: whole lines, for results that no cache would hold
// until they are read. Without it every line would be read from memory before it is written.
TILEWISE_INLINE void stream_bytes(const std::uint8_t* from, std::int64_t count, std::uint8_t* to) {
#if defined(__SSE2__)
  constexpr std::int64_t kLine = 64;
  const std::int64_t before =
      math::min(count, static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(to) % kLine));
  __builtin_memcpy(to, from, static_cast<std::size_t>(before));
  std::int64_t i = before;
  for (; i + kLine <= count; i += kLine) {
    for (std::int64_t part = 0; part < kLine; part += kVectorBytes) {
      const void* const source = from + i + part;
      void* const target = to + i + part;
#if defined(__AVX512F__)
      _mm512_stream_si512(static_cast<__m512i*>(target), _mm512_loadu_si512(source));
#elif defined(__AVX2__)
      _mm256_stream_si256(static_cast<__m256i*>(target),
                          _mm256_loadu_si256(static_cast<const __m256i*>(source)));
#else
      _mm_stream_si128(static_cast<__m128i*>(target),
                       _mm_loadu_si128(static_cast<const __m128i*>(source)));
#endif
    }
  }
  __builtin_memcpy(to + i, from + i, static_cast<std::size_t>(count - i));
#else
  __builtin_memcpy(to, from, static_cast<std::size_t>(count));
#endif
}

// Makes streamed bytes visible before anything that is stored later.
TILEWISE_INLINE void end_stream() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
