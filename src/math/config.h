// Macros and constants that make the headers of src/math usable from every back end: on the host
// and on the device, for scalars and for SIMD vectors.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define TILEWISE_INLINE __host__ __device__ __forceinline__
#else
// Functions are always inlined. The per-target files of src/cpu include these headers, and the
// linker must never keep an out-of-line copy that was compiled for AVX-512 and hand it to the other
// targets.
#define TILEWISE_INLINE inline __attribute__((always_inline))
#endif

namespace tilewise::math {

inline constexpr double kLog2E = 1.4426950408889634074;  // log2(e)
inline constexpr double kLn2 = 0.69314718055994530942;   // log(2)

}  // namespace tilewise::math
