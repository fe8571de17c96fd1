// Stores to global memory whose width the compiler must keep. They are ordered like ordinary
// stores.
#pragma once

#include <cstdint>

namespace tilewise::cuda::ptx {

// st.global.v4 (PTX ISA 9.7.9.12): 16 bytes, aligned to 16. Any thread.
// NOTE: nvcc 13 splits a plain store of a uint4 into four stores of 4 bytes where it can combine
// some of its numbers with others. Each of the four touches as many sectors as the whole (D 128,
// S 512: 0.6 of all sectors were in excess).
__device__ __forceinline__ void st_global_v4(void* to, uint4 chunk) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(chunk.x), "r"(chunk.y),
               "r"(chunk.z), "r"(chunk.w)
               : "memory");
}
__device__ __forceinline__ void st_global_v4(void* to, float4 chunk) {
  st_global_v4(to, make_uint4(__float_as_uint(chunk.x), __float_as_uint(chunk.y),
                              __float_as_uint(chunk.z), __float_as_uint(chunk.w)));
}

// st.global.f32 (9.7.9.12): one number, aligned to 4. Any thread.
__device__ __forceinline__ void st_global(void* to, float x) {
  asm volatile("st.global.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}

}  // namespace tilewise::cuda::ptx
