// src/cuda/host/launch.cuh for the emulation: a launch runs the kernel before it returns, or in the
// order of its stream (streams.h).
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/emulation/block.h"
#include "cuda/emulation/launch.h"
#include "cuda/emulation/streams.h"

namespace tilewise::cuda {

struct Grid {
  std::int64_t blocks;
  int threads;
  int shared_bytes = 0;  // of dynamic_shared()
  int cluster = 1;       // blocks of a cluster (ptx/cluster.cuh)
};

template <class... Arguments>
cudaError_t run_kernel(bool early, void (*kernel)(Arguments...), const Grid& grid,
                       const std::type_identity_t<Arguments>&... arguments) {
  const auto function = [&] { kernel(arguments...); };
  const auto run_function = [](void* called) { (*static_cast<decltype(&function)>(called))(); };
  return emulation::launch(
      reinterpret_cast<const void*>(kernel),
      {grid.blocks, grid.threads, static_cast<std::size_t>(grid.shared_bytes), run_function,
       const_cast<void*>(static_cast<const void*>(&function)), early, grid.cluster});
}

template <class... Arguments>
cudaError_t launch_at(bool early, void (*kernel)(Arguments...), const Grid& grid,
                      cudaStream_t stream, const std::type_identity_t<Arguments>&... arguments) {
  if (!emulation::are_late()) return run_kernel(early, kernel, grid, arguments...);
  return emulation::enqueue(stream, [=] { return run_kernel(early, kernel, grid, arguments...); });
}

template <class... Arguments>
cudaError_t launch(void (*kernel)(Arguments...), const Grid& grid, cudaStream_t stream,
                   const std::type_identity_t<Arguments>&... arguments) {
  return launch_at(false, kernel, grid, stream, arguments...);
}

template <class... Arguments>
cudaError_t launch_early(void (*kernel)(Arguments...), const Grid& grid, cudaStream_t stream,
                         const std::type_identity_t<Arguments>&... arguments) {
  return launch_at(true, kernel, grid, stream, arguments...);
}

inline unsigned char* dynamic_shared() { return emulation::shared_memory(); }

}  // namespace tilewise::cuda
