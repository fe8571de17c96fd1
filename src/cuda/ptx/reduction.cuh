// Reductions of global memory that return nothing.
#pragma once

namespace tilewise::cuda::ptx {

// red.relaxed.gpu.global.add.f32 (PTX ISA 9.7.13.7): adds x to a number, atomically among all
// blocks. In which order the numbers of several threads are added is open. Any thread.
__device__ __forceinline__ void red_add(float* to, float x) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}

}  // namespace tilewise::cuda::ptx
