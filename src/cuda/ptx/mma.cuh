// mma.sync: a matrix product of a warp (PTX ISA 9.7.14.5.8). All 32 lanes execute it together. The
// operands lie in registers as tile/fragment.h draws them, for 16 rows. It is synchronous: the next
// instruction may read the result.
#pragma once

#include <cstdint>

namespace tilewise::cuda::ptx {

// mma.sync.aligned.m16n8k16: d (16, 8) += a (16, 16) b (16, 8), fp32 sums of bf16 or fp16 products.
//   d (4), a (4)
//   b0, b1: lane l holds rows 2 (l % 4), + 1 of column l / 4 in b0, and those 8 further down in b1
template <bool kFp16>
__device__ __forceinline__ void mma_m16n8k16(float* d, const std::uint32_t* a, std::uint32_t b0,
                                             std::uint32_t b1) {
  if constexpr (kFp16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

}  // namespace tilewise::cuda::ptx
