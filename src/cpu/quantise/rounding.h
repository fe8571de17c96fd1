// Rounds registers of floats to fp8: to nearest even, saturating, every NaN to 0x7f.
#pragma once

#include "cpu/simd/vector.h"
#include "math/float8.h"

namespace tilewise::cpu::TILEWISE_TARGET {

using LaneWords = Registers<float>::Unsigned;
using LaneBits = Registers<float>::Bits;

TILEWISE_INLINE LaneBits magnitude_bits(Vec<float> x) { return LaneBits(x.v) & 0x7fffffff; }

// The least magnitude that rounds to more than the largest number, were there more exponents: half
// a step above it, from where the even neighbour is taken.
template <class Format>
TILEWISE_INLINE std::int32_t first_saturated() {
  using Layout = math::Float8Layout<Format>;
  const std::uint32_t half_step = 1u << (22 - Layout::kMantissa);
  const bool tie_stays = (Layout::kLargest & 1u) == 0;
  return static_cast<std::int32_t>(math::bits_of(Layout::kLargestNumber) + half_step +
                                   (tie_stays ? 1u : 0u));
}

// Returns the codes, one in each lane. Adding 2^(e + d) to a number of exponent e, where d is the
// number of bits that the mantissa loses, rounds it to the format's step at e: the low bits of the
// sum are the number in units of that step, 2^m to 2^(m+1) for a mantissa of m bits. Numbers below
// the smallest normal take its exponent, so that the same bits are the code of a denormal.
template <class Format>
TILEWISE_INLINE LaneWords codes_of(Vec<float> x) {
  using Layout = math::Float8Layout<Format>;
  constexpr std::uint32_t kDropped = 23 - Layout::kMantissa;
  constexpr std::uint32_t kFirstExponent = 128 - Layout::kBias;
  const Vec<float> magnitude = minimum(Vec<float>(Vec<float>::Native(magnitude_bits(x))),
                                       Vec<float>(Layout::kLargestNumber));
  const Vec<float> at_least_normal =
      maximum(magnitude, Vec<float>(math::float_of(kFirstExponent << 23)));
  const LaneWords exponent = LaneWords(at_least_normal.v) & 0x7f800000u;
  const LaneWords unit = exponent + (kDropped << 23);
  const LaneWords sum = LaneWords((magnitude + Vec<float>(Vec<float>::Native(unit))).v);
  const LaneWords code =
      (sum - unit) + (exponent >> kDropped) - (kFirstExponent << Layout::kMantissa);
  const LaneWords with_sign = code | ((LaneWords(x.v) >> 24) & 0x80u);
  return x.v == x.v ? with_sign : LaneWords{} + Layout::kNan;
}

TILEWISE_INLINE void store_codes(LaneWords codes, std::uint8_t* to) {
  typedef std::uint8_t Bytes __attribute__((vector_size(kVectorBytes / 4)));
  const Bytes bytes = __builtin_convertvector(codes, Bytes);
  __builtin_memcpy(to, &bytes, sizeof(bytes));
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
