// Addresses of shared memory in the 32-bit form that instructions take.
#pragma once

#include <cstdint>

namespace tilewise::cuda::ptx {

// cvta (PTX ISA 9.7.9.20): the address of a generic pointer into shared memory. Any thread.
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// mov.u32: returns x, but the compiler no longer knows how x was computed, and so keeps
// the result in a register instead of computing it again at each use. Any thread. An address in
// shared memory begins with a read of a special register, and in a short loop the wait for that
// read costs more than a register.
__device__ __forceinline__ std::uint32_t opaque(std::uint32_t x) {
  std::uint32_t result;
  asm volatile("mov.u32 %0, %1;" : "=r"(result) : "r"(x));
  return result;
}
// opaque() of the address of an object in shared memory: returns a reference to x.
template <class T>
__device__ __forceinline__ T& opaque(T& x) {
  return *static_cast<T*>(__cvta_shared_to_generic(opaque(shared_address(&x))));
}

}  // namespace tilewise::cuda::ptx
