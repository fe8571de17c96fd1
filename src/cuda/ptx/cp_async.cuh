// cp.async: copies from global to shared memory that pass by the registers (PTX ISA 9.7.9.25.3).
// Each thread's own: others see the bytes after the thread has waited and a block barrier.
#pragma once

#include <cstdint>

namespace tilewise::cuda::ptx {

// cp.async.cg: 16 bytes at multiples of 16, or 16 zeros if not `inside` (nothing is read then). Any
// thread.
__device__ __forceinline__ void cp_async_16(std::uint32_t to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
}

// The same without a condition.
__device__ __forceinline__ void cp_async_16(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}

// cp.async.ca: the same with 4 bytes at multiples of 4.
__device__ __forceinline__ void cp_async_4(std::uint32_t to, const void* from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(inside ? 4 : 0)
               : "memory");
}

// cp.async.commit_group: the copies of this thread since the last one become a group.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// cp.async.wait_group: until at most kGroups of this thread's groups are unfinished.
template <int kGroups>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace tilewise::cuda::ptx
