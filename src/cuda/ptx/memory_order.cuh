// Stores and loads of global memory that order other accesses, for numbers that the blocks of a
// launch exchange (PTX ISA 8, memory consistency model).
#pragma once

#include <cstdint>

namespace tilewise::cuda::ptx {

// st.release.gpu (9.7.9.12): a thread that acquires the number also sees what this thread wrote
// before. Any thread.
__device__ __forceinline__ void store_release(unsigned long long* to, unsigned long long x) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(x) : "memory");
}

__device__ __forceinline__ void store_release(std::uint32_t* to, std::uint32_t x) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

// ld.acquire.gpu (9.7.9.8): later accesses of this thread see what the thread that released the
// number wrote before. Any thread.
__device__ __forceinline__ unsigned long long load_acquire(const unsigned long long* from) {
  unsigned long long x;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
  return x;
}
__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* from) {
  std::uint32_t x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
  return x;
}

}  // namespace tilewise::cuda::ptx
