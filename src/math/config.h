// What makes these headers usable from every back end: host and device, scalar and SIMD.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define TILEWISE_INLINE __host__ __device__ __forceinline__
#else
// Always inlined: the per-target files of src/cpu include these headers, and an out-of-line copy
// compiled for AVX-512 must never be the one that the linker keeps for everybody.
#define TILEWISE_INLINE inline __attribute__((always_inline))
#endif

namespace tilewise::math {

inline constexpr double kLog2E = 1.4426950408889634074;  // log2(e)
inline constexpr double kLn2 = 0.69314718055994530942;   // log(2)

}  // namespace tilewise::math
