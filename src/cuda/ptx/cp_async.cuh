// cp.async: asynchronous copies from global to shared memory that use no registers (PTX ISA
// 9.7.9.25.3). The thread that issues a copy sees its bytes after cp_async_wait(); other threads of
// the block see them after that wait and a block barrier.
#pragma once

#include <cstdint>

namespace tilewise::cuda::ptx {

// cp.async.cg (9.7.9.25.3.1): copies 16 bytes, both addresses multiples of 16. If not `inside`, it
// writes 16 zeros and reads nothing. Any thread.
__device__ __forceinline__ void cp_async_16(std::uint32_t to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
}

// cp.async.cg without the condition.
__device__ __forceinline__ void cp_async_16(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}

// cp.async.ca: copies 4 bytes, both addresses multiples of 4. If not `inside`, it writes 4 zeros
// and reads nothing. Any thread.
__device__ __forceinline__ void cp_async_4(std::uint32_t to, const void* from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(inside ? 4 : 0)
               : "memory");
}

// cp.async.commit_group (9.7.9.25.3.2): the copies that this thread has issued since its last
// commit become a group.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// cp.async.wait_group (9.7.9.25.3.3): waits until at most kGroups of this thread's latest groups
// are unfinished.
template <int kGroups>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace tilewise::cuda::ptx
