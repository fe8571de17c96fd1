// What only nvcc can read: <<<>>> and the shared memory whose size is given there. An emulation of
// the kernels on the CPU has its own file of this name (tests/cuda/emulation).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

namespace tilewise::cuda {

struct Grid {
  std::int64_t blocks;
  int threads;
  int shared_bytes = 0;  // behind dynamic_shared()
};

// Starts a kernel in the order of the stream.
template <class... Given>
cudaError_t launch(void (*kernel)(Given...), const Grid& grid, cudaStream_t stream,
                   const std::type_identity_t<Given>&... arguments) {
  kernel<<<static_cast<unsigned>(grid.blocks), grid.threads, grid.shared_bytes, stream>>>(
      arguments...);
  return cudaGetLastError();
}

// The block's memory of Grid::shared_bytes, at a multiple of 1024 bytes: the copy engine's swizzle
// asks for so much.
__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return memory;
}

}  // namespace tilewise::cuda
