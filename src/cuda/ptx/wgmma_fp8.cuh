// wgmma of fp8: m64nNk32 with fp32 sums (PTX ISA 9.7.15). Its order is that of ptx/wgmma.cuh. Both
// operands must be contiguous along the summed dimension, whose numbers are those of 32 bytes.
//
// Hopper's sums in fp8 are said to keep 14 bits (DeepSeek-V3, arXiv 2412.19437, 3.3.2), so that a
// long sum takes its parts from registers, one key tile at a time (forward/sm90/fp8).
#pragma once

#include <cstdint>

namespace tilewise::cuda::ptx {

#define TILEWISE_D8(d, i)                                                                     \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define TILEWISE_D32(d, i) \
  TILEWISE_D8(d, i), TILEWISE_D8(d, i + 8), TILEWISE_D8(d, i + 16), TILEWISE_D8(d, i + 24)
#define TILEWISE_R0                                                                \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21," \
  "%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define TILEWISE_R32                                                                 \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51," \
  "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

// d (N / 2) is laid out as tile/fragment.h draws it. Unless `add`, the products replace d.
//   ss (scores):  d (+)= A B^T, A (64, 32) and B (N, 32) in shared memory, both of the format
//   rs (values):  d (+)= A B^T, A (64, 32) of e4m3 in registers, B (N, 32) of the format
// A in registers: lane l of a warp has bytes 4 (l % 4) to 4 (l % 4) + 3 of row l / 4 in register 0,
// of row l / 4 + 8 in register 1, and in registers 2 and 3 those that are 16 further.
template <int kWidth>
struct WgmmaFp8;

#define TILEWISE_WGMMA_FP8(WIDTH, REGISTERS, A, B, C, D, E, F, ...)                          \
  template <>                                                                                \
  struct WgmmaFp8<WIDTH> {                                                                   \
    template <bool kE5M2>                                                                    \
    static __device__ __forceinline__ void ss(float (&d)[WIDTH / 2], std::uint64_t a,        \
                                              std::uint64_t b, bool add) {                   \
      if constexpr (kE5M2) {                                                                 \
        TILEWISE_WGMMA_FP8_SS(WIDTH, "e5m2", REGISTERS, A, B, C, __VA_ARGS__);               \
      } else {                                                                               \
        TILEWISE_WGMMA_FP8_SS(WIDTH, "e4m3", REGISTERS, A, B, C, __VA_ARGS__);               \
      }                                                                                      \
    }                                                                                        \
    template <bool kE5M2>                                                                    \
    static __device__ __forceinline__ void rs(float (&d)[WIDTH / 2], const std::uint32_t* a, \
                                              std::uint64_t b, bool add) {                   \
      if constexpr (kE5M2) {                                                                 \
        TILEWISE_WGMMA_FP8_RS(WIDTH, "e5m2", REGISTERS, A, B, C, D, E, F, __VA_ARGS__);      \
      } else {                                                                               \
        TILEWISE_WGMMA_FP8_RS(WIDTH, "e4m3", REGISTERS, A, B, C, D, E, F, __VA_ARGS__);      \
      }                                                                                      \
    }                                                                                        \
  };
#define TILEWISE_WGMMA_FP8_SS(WIDTH, TYPE, REGISTERS, A, B, C, ...)                                \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #C                                         \
               ", 0;\n"                                                                            \
               "wgmma.mma_async.sync.aligned.m64n" #WIDTH "k32.f32." TYPE "." TYPE "\n{" REGISTERS \
               "}, %" #A ", %" #B ", add, 1, 1;\n}\n"                                              \
               : __VA_ARGS__                                                                       \
               : "l"(a), "l"(b), "r"(static_cast<std::int32_t>(add)))
#define TILEWISE_WGMMA_FP8_RS(WIDTH, TYPE, REGISTERS, A, B, C, D, E, F, ...)                   \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #F                                     \
               ", 0;\n"                                                                        \
               "wgmma.mma_async.sync.aligned.m64n" #WIDTH "k32.f32.e4m3." TYPE "\n{" REGISTERS \
               "}, {%" #A ", %" #B ", %" #C ", %" #D "}, %" #E ", add, 1, 1;\n}\n"             \
               : __VA_ARGS__                                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                           \
                 "r"(static_cast<std::int32_t>(add)))

TILEWISE_WGMMA_FP8(64, TILEWISE_R0, 32, 33, 34, 35, 36, 37, TILEWISE_D32(d, 0))
TILEWISE_WGMMA_FP8(128, TILEWISE_R0 "," TILEWISE_R32, 64, 65, 66, 67, 68, 69, TILEWISE_D32(d, 0),
                   TILEWISE_D32(d, 32))

#undef TILEWISE_WGMMA_FP8
#undef TILEWISE_WGMMA_FP8_SS
#undef TILEWISE_WGMMA_FP8_RS
#undef TILEWISE_D8
#undef TILEWISE_D32
#undef TILEWISE_R0
#undef TILEWISE_R32

}  // namespace tilewise::cuda::ptx
