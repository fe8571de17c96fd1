// Addresses in shared memory, as instructions want them. PTX ISA 9.7.9.20 (cvta).
#pragma once

#include <cstdint>

namespace tilewise::cuda::ptx {

// Of a generic pointer into shared memory. Any thread.
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace tilewise::cuda::ptx
