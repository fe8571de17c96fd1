// The named barriers of a block (PTX ISA 9.7.13.1): 16 of them, of which 0 is __syncthreads(). A
// barrier completes when `threads` threads, a multiple of 32, have synced or arrived, and is then
// ready for its next use. It orders memory among the threads of the block as __syncthreads() does:
// what a thread wrote before it arrived is visible to those that sync.
#pragma once

#include <cstdint>

namespace tilewise::cuda::ptx {

// barrier.sync: arrives, and waits until the barrier is complete. Whole warps.
__device__ __forceinline__ void named_barrier_sync(std::uint32_t name, std::uint32_t threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// barrier.arrive: arrives without waiting. Whole warps.
__device__ __forceinline__ void named_barrier_arrive(std::uint32_t name, std::uint32_t threads) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

}  // namespace tilewise::cuda::ptx
