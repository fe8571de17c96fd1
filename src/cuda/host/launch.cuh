// Launches, and the dynamic shared memory of a block: the syntax that only nvcc compiles. The
// emulation of the kernels on the CPU replaces this file (tests/cuda/emulation).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tilewise::cuda {

struct Grid {
  std::int64_t blocks;
  int threads;
  int shared_bytes = 0;  // of dynamic_shared()
  int cluster = 1;       // blocks of a cluster (ptx/cluster.cuh)
};

template <class... Arguments>
cudaError_t launch_with(cudaLaunchAttribute attribute, void (*kernel)(Arguments...),
                        const Grid& grid, cudaStream_t stream,
                        const std::type_identity_t<Arguments>&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(grid.blocks);
  config.blockDim = static_cast<unsigned>(grid.threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(grid.shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// Starts a kernel on the stream.
template <class... Arguments>
cudaError_t launch(void (*kernel)(Arguments...), const Grid& grid, cudaStream_t stream,
                   const std::type_identity_t<Arguments>&... arguments) {
  if (grid.cluster > 1) {
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(grid.cluster), 1, 1};
    return launch_with(cluster, kernel, grid, stream, arguments...);
  }
  kernel<<<static_cast<unsigned>(grid.blocks), grid.threads, grid.shared_bytes, stream>>>(
      arguments...);
  return cudaGetLastError();
}

// Whether launch_early() uses PDL. Drivers before 12.3 refuse it while a graph is captured.
inline bool allows_early_launches() {
  static const bool allows = [] {
    constexpr int kFirst = 12030;
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess && version >= kFirst;
  }();
  return allows;
}

// Starts a kernel with programmatic dependent launch (PDL): it may begin while the kernel before it
// ends. Each of its threads waits for that end (ptx/pdl.cuh) before it reads or writes memory.
template <class... Arguments>
cudaError_t launch_early(void (*kernel)(Arguments...), const Grid& grid, cudaStream_t stream,
                         const std::type_identity_t<Arguments>&... arguments) {
  if (!allows_early_launches()) return launch(kernel, grid, stream, arguments...);
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  return launch_with(early, kernel, grid, stream, arguments...);
}

// The Grid::shared_bytes bytes of the block, aligned to 1024 bytes as the swizzle of TMA requires.
__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return memory;
}

}  // namespace tilewise::cuda
