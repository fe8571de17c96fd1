// Arithmetic that C++ has no word for. Any thread.
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

// cvt.rn.bf16x2.f32, cvt.rn.f16x2.f32 (9.7.9.22): two floats rounded to nearest even, `low` in the
// low half.
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

}  // namespace tilewise::cuda::ptx
