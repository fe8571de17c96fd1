// Programmatic dependent launch: a kernel may begin while the kernel before it in the stream still
// runs (griddepcontrol, PTX ISA 9.7.13.13). Without the launch attribute neither instruction has an
// effect. Code for architectures before 9.0 has neither, and is not launched with the attribute.
#pragma once

namespace tilewise::cuda::ptx {

// griddepcontrol.launch_dependents: the next kernel may begin once every block of this one has
// executed this instruction or ended. Any thread. It orders no memory.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// griddepcontrol.wait: waits until the kernel before has ended and its writes are visible. Any
// thread.
__device__ __forceinline__ void wait_for_dependency() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace tilewise::cuda::ptx
