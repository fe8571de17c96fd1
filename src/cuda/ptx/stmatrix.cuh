// Small matrices between registers and shared memory.
#pragma once

#include <cstdint>

namespace tilewise::cuda::ptx {

// stmatrix.x4 (PTX ISA 9.7.14.5.16): four matrices of (8, 8) 16-bit numbers. Lane l gives, of each,
// the pair at row l / 4 and columns 2 (l % 4), and the address of row l % 8 of matrix l / 8: 16
// bytes, aligned to 16. All lanes of a warp; they read what others wrote after __syncwarp().
__device__ __forceinline__ void stmatrix_x4(std::uint32_t address,
                                            const std::uint32_t (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
               : "memory");
}

// ld.shared.v4 (9.7.9.8): 16 bytes, aligned to 16. Any thread.
__device__ __forceinline__ uint4 ld_shared_v4(std::uint32_t address) {
  uint4 result;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(result.x), "=r"(result.y), "=r"(result.z), "=r"(result.w)
               : "r"(address)
               : "memory");
  return result;
}

// st.shared.v2 (9.7.9.12): two numbers, aligned to 8. Any thread.
__device__ __forceinline__ void st_shared_v2(std::uint32_t address, float low, float high) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(low), "f"(high) : "memory");
}

// ld.shared: a number, aligned to 4. Any thread.
__device__ __forceinline__ float ld_shared(std::uint32_t address) {
  float result;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(result) : "r"(address) : "memory");
  return result;
}

}  // namespace tilewise::cuda::ptx
