// Macros and constants that make the headers of src/math usable from every back end: on the host
// and on the device, for scalars and for SIMD vectors.
#pragma once

#include <cstdint>

// Infinity is the maximum of an empty row, NaN must reach the rows that see it, and the rounding of
// exp2 depends on the order of its operations. cmake/TilewiseOptions.cmake undoes these options if
// they come from the flags of a project that contains Tilewise.
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__)
#error "Tilewise needs IEEE arithmetic: compile its sources without any part of -ffast-math"
#endif
#if defined(__FLT_EVAL_METHOD__) && (__FLT_EVAL_METHOD__ == 1 || __FLT_EVAL_METHOD__ == 2)
#error "Tilewise needs arithmetic without excess precision: compile its sources with -mfpmath=sse"
#endif
static_assert(sizeof(1.0) == sizeof(double), "Tilewise cannot use -fsingle-precision-constant");

#if defined(__CUDACC__)
#define TILEWISE_INLINE __host__ __device__ __forceinline__
#elif !defined(TILEWISE_INLINE)
// Functions are always inlined. The per-target files of src/cpu include these headers, and the
// linker must never keep an out-of-line copy that was compiled for AVX-512 and hand it to the other
// targets. (tests/cpu/emulation compiles all targets for one instruction set, and faster without.)
#define TILEWISE_INLINE inline __attribute__((always_inline))
#endif

namespace tilewise::math {

inline constexpr double kLog2E = 1.4426950408889634074;  // log2(e)
inline constexpr double kLn2 = 0.69314718055994530942;   // log(2)

}  // namespace tilewise::math
