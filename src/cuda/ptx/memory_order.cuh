// Stores and loads of global memory that order other accesses, for numbers that the blocks of a
// launch exchange (PTX ISA 8, memory consistency model).
#pragma once

namespace tilewise::cuda::ptx {

// st.release.gpu (9.7.9.12): a thread that acquires the number also sees what this thread wrote
// before. Any thread.
__device__ __forceinline__ void store_release(unsigned long long* to, unsigned long long x) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(x) : "memory");
}

// red.release.gpu.add (9.7.13.7): store_release() of the number plus x, where several threads add.
__device__ __forceinline__ void add_release(unsigned long long* to, unsigned long long x) {
  asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(to), "l"(x) : "memory");
}

// ld.acquire.gpu (9.7.9.8): later accesses of this thread see what the thread that released the
// number wrote before. Any thread.
__device__ __forceinline__ unsigned long long load_acquire(const unsigned long long* from) {
  unsigned long long x;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
  return x;
}

}  // namespace tilewise::cuda::ptx
