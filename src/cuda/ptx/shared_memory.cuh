// Loads and stores of shared memory by its 32-bit address. They are ordered like ordinary loads and
// stores: a thread sees what others of its warp wrote after __syncwarp(), and what others of its
// block wrote after a barrier.
#pragma once

#include <cstdint>

namespace tilewise::cuda::ptx {

// ld.shared.v4 (PTX ISA 9.7.9.8): 16 bytes, aligned to 16. Any thread.
__device__ __forceinline__ uint4 ld_shared_v4(std::uint32_t address) {
  uint4 result;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(result.x), "=r"(result.y), "=r"(result.z), "=r"(result.w)
               : "r"(address)
               : "memory");
  return result;
}

// ld.shared.f32 (9.7.9.8): one number, aligned to 4. Any thread.
__device__ __forceinline__ float ld_shared(std::uint32_t address) {
  float result;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(result) : "r"(address) : "memory");
  return result;
}

// st.shared.v2.f32 (9.7.9.12): two numbers, aligned to 8. Any thread.
__device__ __forceinline__ void st_shared_v2(std::uint32_t address, float low, float high) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(low), "f"(high) : "memory");
}

}  // namespace tilewise::cuda::ptx
