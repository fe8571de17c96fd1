// src/cuda/ptx/arithmetic.cuh for the emulation. Where PTX allows an error, the result here is the
// rounded one.
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/emulation/work.h"
#include "math/float8.h"

namespace tilewise::cuda::ptx {

// Flushes numbers below 2^-126 to zero, with their sign.
inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

inline float exp2_approx(float x) {
  ++emulation::work.exponentials;
  return flushed(std::exp2(flushed(x)));
}

inline float reciprocal_approx(float x) { return flushed(1 / flushed(x)); }
inline float min_nan(float a, float b) {
  return std::isnan(a) || std::isnan(b) ? std::nanf("") : std::fmin(a, b);
}
inline float max_nan(float a, float b) {
  return std::isnan(a) || std::isnan(b) ? std::nanf("") : std::fmax(a, b);
}
inline float log2_approx(float x) { return std::log2(flushed(x)); }

template <bool kFp16>
float unpack(std::uint32_t pair, int which) {
  const auto bits = static_cast<std::uint16_t>(pair >> 16 * which);
  return kFp16 ? math::to_float(math::Float16{bits}) : math::to_float(math::BFloat16{bits});
}

// A NaN becomes the one of all bits set but the sign.
template <bool kFp16>
std::uint32_t pack(float low, float high) {
  const auto rounded = [](float x) -> std::uint32_t {
    if (std::isnan(x)) return 0x7FFF;
    return kFp16 ? math::to_float16(x).bits : math::to_bfloat16(x).bits;
  };
  return rounded(low) | rounded(high) << 16;
}

template <bool kFp16>
std::uint32_t fma_x2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  const auto half = [&](unsigned shift) -> std::uint32_t {
    const auto number = [shift](std::uint32_t pair) {
      const auto bits = static_cast<std::uint16_t>(pair >> shift);
      return kFp16 ? math::load<double>(math::Float16{bits})
                   : math::load<double>(math::BFloat16{bits});
    };
    const double sum = std::fma(number(a), number(b), number(c));
    return pack<kFp16>(math::to_odd_float(sum), 0) << shift;
  };
  return half(0) | half(16);
}

template <int kByte>
std::uint32_t spread_signs(std::uint32_t low, std::uint32_t high) {
  const auto half = [](std::uint32_t word) -> std::uint32_t {
    return (word >> (8 * kByte + 7) & 1) != 0 ? 0xFFFF : 0;
  };
  return half(low) | half(high) << 16;
}

inline std::uint32_t permute_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
  const std::uint64_t bytes = std::uint64_t{high} << 32 | low;
  std::uint32_t result = 0;
  for (unsigned i = 0; i < 4; ++i)
    result |= static_cast<std::uint32_t>(bytes >> (selector >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
  return result;
}

template <class Format>
std::uint32_t pack_fp8(float first, float second, float third, float fourth) {
  const auto code = [](float x) -> std::uint32_t { return math::to_float8<Format>(x).bits; };
  return code(first) | code(second) << 8 | code(third) << 16 | code(fourth) << 24;
}
inline std::uint32_t pack_e4m3(float first, float second, float third, float fourth) {
  return pack_fp8<math::Float8E4M3>(first, second, third, fourth);
}
inline std::uint32_t pack_e5m2(float first, float second, float third, float fourth) {
  return pack_fp8<math::Float8E5M2>(first, second, third, fourth);
}

inline void e4m3_to_fp16(std::uint32_t numbers, std::uint32_t& low, std::uint32_t& high) {
  const auto number = [numbers](unsigned byte) {
    const auto bits = static_cast<std::uint8_t>(numbers >> 8 * byte);
    return math::to_float(math::Float8E4M3{bits});
  };
  low = pack<true>(number(0), number(1));
  high = pack<true>(number(2), number(3));
}

}  // namespace tilewise::cuda::ptx
