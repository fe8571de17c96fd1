// A kernel that begins while the one before it in the stream still runs (PTX ISA 9.7.13.13,
// griddepcontrol). Launched otherwise, neither does anything.
#pragma once

namespace tilewise::cuda::ptx {

// griddepcontrol.launch_dependents: the next kernel may begin once every block of this one has said
// so or ended. Any thread.
__device__ __forceinline__ void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// griddepcontrol.wait: until the kernel before has ended and its writes can be seen. Any thread.
__device__ __forceinline__ void wait_for_dependency() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace tilewise::cuda::ptx
