// Rounds registers of floats to fp8: to nearest even, saturating, every NaN to 0x7f.
#pragma once

#include "cpu/simd/vector.h"
#include "math/float8.h"

namespace tilewise::cpu::TILEWISE_TARGET {

using LaneWords = Registers<float>::Unsigned;
using LaneBits = Registers<float>::Bits;

TILEWISE_INLINE LaneBits magnitude_bits(Vec<float> x) { return LaneBits(x.v) & 0x7fffffff; }

// Returns the codes of numbers that round to at most the largest one, each in the low byte of its
// lane; what the other bytes hold is undefined.
//
// Adding 2^(e + d) to a number of exponent e, where d is the number of bits that the mantissa
// loses, rounds it to the format's step at e: the low bits of the sum are the number in units of
// that step, 2^m to 2^(m+1) for a mantissa of m bits. Numbers below the smallest normal take its
// exponent, so that the same bits are the code of a denormal. The exponent, counted from that of
// the smallest normal, belongs above them; what it is counted from is added with 2^(e + d), as an
// even number of units, which no rounding sees.
template <class Format>
TILEWISE_INLINE LaneWords codes_of_small(Vec<float> x) {
  using Layout = math::Float8Layout<Format>;
  constexpr std::int32_t kDropped = 23 - Layout::kMantissa;
  constexpr std::int32_t kFirstExponent = 128 - Layout::kBias;
  constexpr std::int32_t kOrigin = 256 - (kFirstExponent << Layout::kMantissa) % 256;
  static_assert(kOrigin % 2 == 0, "an odd number of units would change which neighbour is even");
  const LaneBits bits = LaneBits(x.v);
  const LaneBits own = bits & 0x7f800000;
  const LaneBits first = LaneBits{} + (kFirstExponent << 23);
  const LaneBits exponent = own > first ? own : first;
  const LaneBits unit = (exponent + ((kDropped << 23) + kOrigin)) | (bits & INT32_MIN);
  const LaneWords sum = LaneWords((x + Vec<float>(Vec<float>::Native(unit))).v);
  const LaneWords code = sum + (LaneWords(exponent) >> kDropped);
  return (code & 0x7fu) | ((LaneWords(bits) >> 24) & 0x80u);
}

// The same for all numbers: saturates, and makes 0x7f of NaN.
template <class Format>
TILEWISE_INLINE LaneWords codes_of(Vec<float> x) {
  const Vec<float> largest(math::Float8Layout<Format>::kLargestNumber);
  const LaneWords codes = codes_of_small<Format>(maximum(minimum(x, largest), -largest));
  return x.v == x.v ? codes : LaneWords{} + math::Float8Layout<Format>::kNan;
}

TILEWISE_INLINE void store_codes(LaneWords codes, std::uint8_t* to) {
  typedef std::uint8_t Bytes __attribute__((vector_size(kVectorBytes / 4)));
  const Bytes bytes = __builtin_convertvector(codes, Bytes);
  __builtin_memcpy(to, &bytes, sizeof(bytes));
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
