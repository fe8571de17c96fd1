// Addresses in shared memory, as instructions want them. PTX ISA 9.7.9.20 (cvta).
#pragma once

#include <cstdint>

namespace tilewise::cuda::ptx {

// Of a generic pointer into shared memory. Any thread.
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// mov: the same, of which the compiler forgets where it comes from. Any thread. For what it
// would else compute again wherever it is used: an address in shared memory starts with a special
// register, and the wait for that in a short loop is longer than a register is worth.
__device__ __forceinline__ std::uint32_t opaque(std::uint32_t x) {
  std::uint32_t result;
  asm volatile("mov.u32 %0, %1;" : "=r"(result) : "r"(x));
  return result;
}
// x: in shared memory.
template <class T>
__device__ __forceinline__ T& opaque(T& x) {
  return *static_cast<T*>(__cvta_shared_to_generic(opaque(shared_address(&x))));
}

}  // namespace tilewise::cuda::ptx
