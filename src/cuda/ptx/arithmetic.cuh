// Arithmetic instructions without a C++ operator. Any thread may execute them; none touches memory.
#pragma once

#include <cstdint>

namespace tilewise::cuda::ptx {

// ex2.approx.ftz.f32 (PTX ISA 9.7.3.21): 2^x with a relative error of at most 2^-22.5; results
// below 2^-126 are 0, NaN stays NaN.
__device__ __forceinline__ float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// rcp.approx.ftz.f32 (9.7.3.15): 1 / x with an error of at most 1 ulp.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// min.NaN.f32, max.NaN.f32 (9.7.3.11, 9.7.3.12), sm_80 and later: the result is NaN if either
// operand is.
__device__ __forceinline__ float min_nan(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
__device__ __forceinline__ float max_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// lg2.approx.ftz.f32 (9.7.3.20): log2(x) with an error of at most 2^-22, relative beyond (0.5, 2).
__device__ __forceinline__ float log2_approx(float x) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// fma.rn.bf16x2, fma.rn.f16x2 (9.7.4.4): a * b + c, for each of the two 16-bit halves.
template <bool kFp16>
__device__ __forceinline__ std::uint32_t fma_x2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t result;
  if constexpr (kFp16) {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  } else {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  }
  return result;
}

// cvt.rn.bf16x2.f32, cvt.rn.f16x2.f32 (9.7.9.22): rounds two floats to nearest even and packs them,
// `low` in the low half.
template <bool kFp16>
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  std::uint32_t result;
  if constexpr (kFp16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  }
  return result;
}

// cvt.f32.f16 (9.7.9.22), or a shift: the number in half `which` (0: low) of a pair, which pack()
// undoes.
template <bool kFp16>
__device__ __forceinline__ float unpack(std::uint32_t pair, int which) {
  if constexpr (!kFp16) return __uint_as_float(which == 0 ? pair << 16 : pair & 0xFFFF0000u);
  float result;
  asm("{\n.reg .f16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, low;\n}"
      : "=f"(result)
      : "r"(which == 0 ? pair : pair >> 16));
  return result;
}

// prmt.b32 (9.7.9.7) in its mode that replicates signs: both bytes of the low half of the result
// become the sign bit of byte kByte of `low` (0x00 or 0xFF), both bytes of the high half that of
// byte kByte of `high`.
template <int kByte>
__device__ __forceinline__ std::uint32_t spread_signs(std::uint32_t low, std::uint32_t high) {
  static_assert(kByte >= 0 && kByte < 4);
  constexpr std::uint32_t kSign = 8;  // the selector's bit for the sign instead of the byte
  constexpr std::uint32_t kLow = kSign | kByte;
  constexpr std::uint32_t kHigh = kSign | 4 | kByte;
  std::uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;"
      : "=r"(result)
      : "r"(low), "r"(high), "n"(kHigh << 12 | kHigh << 8 | kLow << 4 | kLow));
  return result;
}

// prmt.b32 (9.7.9.7): each byte of the result is one of the eight bytes of `low` (0 to 3) and
// `high` (4 to 7), whose number is a hexadecimal digit of the selector, the last digit for the
// lowest byte.
__device__ __forceinline__ std::uint32_t permute_bytes(std::uint32_t low, std::uint32_t high,
                                                       std::uint32_t selector) {
  std::uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
  return result;
}

// cvt.rn.satfinite.e4m3x2.f32 (9.7.9.22), twice: rounds four floats to e4m3, to nearest even, and
// packs them, the first in the lowest byte. Beyond 448 they become 448; NaN stays NaN.
__device__ __forceinline__ std::uint32_t pack_e4m3(float first, float second, float third,
                                                   float fourth) {
  std::uint32_t result;
  asm("{\n.reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n}"
      : "=r"(result)
      : "f"(first), "f"(second), "f"(third), "f"(fourth));
  return result;
}

// The same for e5m2, whose largest number is 57344.
__device__ __forceinline__ std::uint32_t pack_e5m2(float first, float second, float third,
                                                   float fourth) {
  std::uint32_t result;
  asm("{\n.reg .b16 low, high;\n"
      "cvt.rn.satfinite.e5m2x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e5m2x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n}"
      : "=r"(result)
      : "f"(first), "f"(second), "f"(third), "f"(fourth));
  return result;
}

// cvt.rn.f16x2.e4m3x2 (9.7.9.22), twice, sm_89 and later: four numbers of e4m3 as fp16, exactly,
// those of the lower two bytes in `low`. NaN stays NaN.
__device__ __forceinline__ void e4m3_to_fp16(std::uint32_t numbers, std::uint32_t& low,
                                             std::uint32_t& high) {
  asm("{\n.reg .b16 first, second;\n"
      "mov.b32 {first, second}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, first;\n"
      "cvt.rn.f16x2.e4m3x2 %1, second;\n}"
      : "=r"(low), "=r"(high)
      : "r"(numbers));
}

}  // namespace tilewise::cuda::ptx
