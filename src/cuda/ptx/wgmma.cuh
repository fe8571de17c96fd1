// wgmma: asynchronous matrix products of a warpgroup (PTX ISA 9.7.15). All 128 threads of the
// warpgroup execute every function here together.
//
// Order: wgmma_fence() before the first product, and again whenever other instructions have written
// registers of an operand; any number of products; wgmma_commit(); wgmma_wait<n>(), which waits
// until at most n committed groups are unfinished. Between a product and that wait, no instruction
// may touch its registers or overwrite its shared memory. The compiler does not know that the
// results come late: fence_operand() keeps it from moving reads of them before the wait.
#pragma once

#include <cstdint>

namespace tilewise::cuda::ptx {

// wgmma.fence (9.7.15.7.1): orders earlier accesses of registers before the products that follow.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// wgmma.commit_group (9.7.15.7.2): the products since the last commit become a group.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// wgmma.wait_group (9.7.15.7.3): waits until at most kGroups of the latest groups are unfinished.
template <int kGroups>
__device__ __forceinline__ void wgmma_wait() {
  static_assert(kGroups >= 0 && kGroups <= 7, "wgmma.wait_group takes 0 to 7 groups.");
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

// No instruction: the compiler must assume that the registers change here.
template <int kCount>
__device__ __forceinline__ void fence_operand(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

template <int kCount>
__device__ __forceinline__ void fence_operand(std::uint32_t (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

// Placeholders and operands of 8 to 128 accumulator registers.
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
#define TILEWISE_R64                                                                 \
  "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83," \
  "%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define TILEWISE_R96                                                                       \
  "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113," \
  "%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// wgmma.mma_async m64nNk16 with fp32 sums; d (N / 2) is laid out as tile/fragment.h
// draws it.
//   ss (scores):  d (+)= A B^T, A (64, 16) and B (N, 16) in shared memory, rows contiguous
//   rs (values):  d (+)= A B, A (64, 16) in registers, B (16, N) in shared memory, rows contiguous
//   tt (dQ):      d (+)= A^T B, A (16, 64) and B (16, N) in shared memory, rows contiguous
// Operands in shared memory are given as descriptors (tile/swizzle.h). Unless `add`, the products
// replace d instead of being added to it.
template <int kWidth>
struct Wgmma;

#define TILEWISE_WGMMA(WIDTH, REGISTERS, A, B, C, D, E, F, ...)                              \
  template <>                                                                                \
  struct Wgmma<WIDTH> {                                                                      \
    template <bool kFp16>                                                                    \
    static __device__ __forceinline__ void ss(float (&d)[WIDTH / 2], std::uint64_t a,        \
                                              std::uint64_t b, bool add) {                   \
      if constexpr (kFp16) {                                                                 \
        TILEWISE_WGMMA_SS(WIDTH, "f16", "0, 0", REGISTERS, A, B, C, __VA_ARGS__);            \
      } else {                                                                               \
        TILEWISE_WGMMA_SS(WIDTH, "bf16", "0, 0", REGISTERS, A, B, C, __VA_ARGS__);           \
      }                                                                                      \
    }                                                                                        \
    template <bool kFp16>                                                                    \
    static __device__ __forceinline__ void tt(float (&d)[WIDTH / 2], std::uint64_t a,        \
                                              std::uint64_t b, bool add) {                   \
      if constexpr (kFp16) {                                                                 \
        TILEWISE_WGMMA_SS(WIDTH, "f16", "1, 1", REGISTERS, A, B, C, __VA_ARGS__);            \
      } else {                                                                               \
        TILEWISE_WGMMA_SS(WIDTH, "bf16", "1, 1", REGISTERS, A, B, C, __VA_ARGS__);           \
      }                                                                                      \
    }                                                                                        \
    template <bool kFp16>                                                                    \
    static __device__ __forceinline__ void rs(float (&d)[WIDTH / 2], const std::uint32_t* a, \
                                              std::uint64_t b, bool add) {                   \
      if constexpr (kFp16) {                                                                 \
        TILEWISE_WGMMA_RS(WIDTH, "f16", REGISTERS, A, B, C, D, E, F, __VA_ARGS__);           \
      } else {                                                                               \
        TILEWISE_WGMMA_RS(WIDTH, "bf16", REGISTERS, A, B, C, D, E, F, __VA_ARGS__);          \
      }                                                                                      \
    }                                                                                        \
  };
// TRANSPOSED: whether A and B are contiguous across the summed dimension.
#define TILEWISE_WGMMA_SS(WIDTH, TYPE, TRANSPOSED, REGISTERS, A, B, C, ...)                        \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #C                                         \
               ", 0;\n"                                                                            \
               "wgmma.mma_async.sync.aligned.m64n" #WIDTH "k16.f32." TYPE "." TYPE "\n{" REGISTERS \
               "}, %" #A ", %" #B ", add, 1, 1, " TRANSPOSED ";\n}\n"                              \
               : __VA_ARGS__                                                                       \
               : "l"(a), "l"(b), "r"(static_cast<std::int32_t>(add)))
#define TILEWISE_WGMMA_RS(WIDTH, TYPE, REGISTERS, A, B, C, D, E, F, ...)                           \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #F                                         \
               ", 0;\n"                                                                            \
               "wgmma.mma_async.sync.aligned.m64n" #WIDTH "k16.f32." TYPE "." TYPE "\n{" REGISTERS \
               "}, {%" #A ", %" #B ", %" #C ", %" #D "}, %" #E ", add, 1, 1, 1;\n}\n"              \
               : __VA_ARGS__                                                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                               \
                 "r"(static_cast<std::int32_t>(add)))

TILEWISE_WGMMA(64, TILEWISE_R0, 32, 33, 34, 35, 36, 37, TILEWISE_D32(d, 0))
TILEWISE_WGMMA(128, TILEWISE_R0 "," TILEWISE_R32, 64, 65, 66, 67, 68, 69, TILEWISE_D32(d, 0),
               TILEWISE_D32(d, 32))
TILEWISE_WGMMA(256, TILEWISE_R0 "," TILEWISE_R32 "," TILEWISE_R64 "," TILEWISE_R96, 128, 129, 130,
               131, 132, 133, TILEWISE_D32(d, 0), TILEWISE_D32(d, 32), TILEWISE_D32(d, 64),
               TILEWISE_D32(d, 96))

#undef TILEWISE_WGMMA
#undef TILEWISE_WGMMA_SS
#undef TILEWISE_WGMMA_RS
#undef TILEWISE_D8
#undef TILEWISE_D32
#undef TILEWISE_R0
#undef TILEWISE_R32
#undef TILEWISE_R64
#undef TILEWISE_R96

}  // namespace tilewise::cuda::ptx
