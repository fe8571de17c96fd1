// What only nvcc can read: <<<>>> and the shared memory whose size is given there. An emulation of
// the kernels on the CPU has its own file of this name (tests/cuda/emulation).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
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

// Drivers before 12.3 refuse such launches while a graph is captured.
inline bool allows_early_launches() {
  static const bool allows = [] {
    constexpr int kFirst = 12030;
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess && version >= kFirst;
  }();
  return allows;
}

// The same for a kernel that may begin while the one before it ends: each of its threads waits for
// that by ptx/succession.cuh before it reads or writes memory.
template <class... Given>
cudaError_t launch_early(void (*kernel)(Given...), const Grid& grid, cudaStream_t stream,
                         const std::type_identity_t<Given>&... arguments) {
  if (!allows_early_launches()) return launch(kernel, grid, stream, arguments...);
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(grid.blocks);
  config.blockDim = static_cast<unsigned>(grid.threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(grid.shared_bytes);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// The block's memory of Grid::shared_bytes, at a multiple of 1024 bytes: the copy engine's swizzle
// asks for so much.
__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return memory;
}

}  // namespace tilewise::cuda
