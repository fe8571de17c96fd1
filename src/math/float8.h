// fp8 as storage types: e4m3 (the "fn" variant, without infinity) and e5m2, of the OCP
// specification "8-bit floating point" (2023). Conversion to float is exact; conversion from float
// rounds to nearest even and saturates (docs/semantics.md, "fp8").
#pragma once

#include "math/number.h"

namespace tilewise::math {

struct Float8E4M3 {
  std::uint8_t bits;
};
struct Float8E5M2 {
  std::uint8_t bits;
};

// The layout of a format: the exponent's bias, the bits of the mantissa, and the codes of the
// largest number and of NaN, without the sign.
template <class Format>
struct Float8Layout;
template <>
struct Float8Layout<Float8E4M3> {
  static constexpr int kBias = 7;
  static constexpr int kMantissa = 3;
  static constexpr std::uint32_t kLargest = 0x7e;
  static constexpr std::uint32_t kNan = 0x7f;
  static constexpr float kLargestNumber = 448;
};
template <>
struct Float8Layout<Float8E5M2> {
  static constexpr int kBias = 15;
  static constexpr int kMantissa = 2;
  static constexpr std::uint32_t kLargest = 0x7b;
  static constexpr std::uint32_t kNan = 0x7f;
  static constexpr float kLargestNumber = 57344;
};

// The bits of an e5m2 are the upper half of an fp16.
TILEWISE_INLINE float to_float(Float8E5M2 x) {
  return to_float(Float16{static_cast<std::uint16_t>(x.bits << 8)});
}

// The exponent and the mantissa of an e4m3 are those of an fp16 that is 2^-8 times as large.
TILEWISE_INLINE float to_float(Float8E4M3 x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x80u) << 24;
  const std::uint32_t magnitude = x.bits & 0x7fu;
  if (magnitude == Float8Layout<Float8E4M3>::kNan) return float_of(sign | 0x7fc00000u);
  const float small = to_float(Float16{static_cast<std::uint16_t>(magnitude << 7)});
  return float_of(sign | bits_of(small * 0x1p8f));
}

// Rounds to nearest even; what lies beyond the largest number becomes that number, an infinity too,
// and NaN stays NaN.
template <class Format>
TILEWISE_INLINE Format to_float8(float x) {
  using Layout = Float8Layout<Format>;
  constexpr int kDropped = 23 - Layout::kMantissa;  // bits of the mantissa
  constexpr std::uint32_t kSmallestNormal = static_cast<std::uint32_t>(128 - Layout::kBias) << 23;
  const std::uint32_t sign = (bits_of(x) >> 24) & 0x80u;
  const std::uint32_t magnitude = bits_of(x) & 0x7fffffffu;
  std::uint32_t code;
  if (magnitude > 0x7f800000u) {
    code = Layout::kNan;
  } else if (magnitude >= bits_of(Layout::kLargestNumber)) {
    code = Layout::kLargest;
  } else if (magnitude < kSmallestNormal) {
    // A float of this size has the denormals' step as the unit of its mantissa: adding it rounds.
    const float unit = float_of(kSmallestNormal + (static_cast<std::uint32_t>(kDropped) << 23));
    code = bits_of(float_of(magnitude) + unit) - bits_of(unit);
  } else {
    const std::uint32_t half = (1u << (kDropped - 1)) - 1 + ((magnitude >> kDropped) & 1u);
    code = (magnitude + half - kSmallestNormal + (1u << 23)) >> kDropped;
  }
  return {static_cast<std::uint8_t>(sign | code)};
}

// The bits of the least magnitude that rounds to more than the largest number, were there more
// exponents: half a step above it, from where the even neighbour is taken.
template <class Format>
TILEWISE_INLINE std::uint32_t first_saturated() {
  using Layout = Float8Layout<Format>;
  constexpr std::uint32_t kHalfStep = 1u << (22 - Layout::kMantissa);
  constexpr bool kTieStays = (Layout::kLargest & 1u) == 0;
  return bits_of(Layout::kLargestNumber) + kHalfStep + (kTieStays ? 1u : 0u);
}

template <class T>
TILEWISE_INLINE T load(Float8E4M3 x) {
  return static_cast<T>(to_float(x));
}
template <class T>
TILEWISE_INLINE T load(Float8E5M2 x) {
  return static_cast<T>(to_float(x));
}
TILEWISE_INLINE void store(float x, Float8E4M3* to) { *to = to_float8<Float8E4M3>(x); }
TILEWISE_INLINE void store(float x, Float8E5M2* to) { *to = to_float8<Float8E5M2>(x); }
TILEWISE_INLINE void store(double x, Float8E4M3* to) { store(to_odd_float(x), to); }
TILEWISE_INLINE void store(double x, Float8E5M2* to) { store(to_odd_float(x), to); }

}  // namespace tilewise::math
