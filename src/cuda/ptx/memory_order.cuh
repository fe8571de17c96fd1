// Numbers that the blocks of a launch tell each other through memory (PTX ISA 8, memory consistency
// model).
#pragma once

namespace tilewise::cuda::ptx {

// st.release.gpu (9.7.9.12): what this thread wrote before is seen by whoever acquires the number.
__device__ __forceinline__ void store_release(unsigned long long* to, unsigned long long x) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(x) : "memory");
}

// ld.acquire.gpu (9.7.9.8)
__device__ __forceinline__ unsigned long long load_acquire(const unsigned long long* from) {
  unsigned long long x;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
  return x;
}

}  // namespace tilewise::cuda::ptx
