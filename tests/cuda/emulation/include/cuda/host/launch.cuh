// src/cuda/host/launch.cuh for the emulation: a launch runs the kernel before it returns.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/emulation/block.h"
#include "cuda/emulation/kernels.h"

namespace tilewise::cuda {

struct Grid {
  std::int64_t blocks;
  int threads;
  int shared_bytes = 0;  // behind dynamic_shared()
};

template <class... Given>
cudaError_t launch_at(bool early, void (*kernel)(Given...), const Grid& grid,
                      const std::type_identity_t<Given>&... arguments) {
  const auto body = [&] { kernel(arguments...); };
  const auto run_body = [](void* of) { (*static_cast<decltype(&body)>(of))(); };
  return emulation::launch(reinterpret_cast<const void*>(kernel),
                           {grid.blocks, grid.threads, static_cast<std::size_t>(grid.shared_bytes),
                            run_body, const_cast<void*>(static_cast<const void*>(&body)), early});
}

template <class... Given>
cudaError_t launch(void (*kernel)(Given...), const Grid& grid, cudaStream_t,
                   const std::type_identity_t<Given>&... arguments) {
  return launch_at(false, kernel, grid, arguments...);
}

template <class... Given>
cudaError_t launch_early(void (*kernel)(Given...), const Grid& grid, cudaStream_t,
                         const std::type_identity_t<Given>&... arguments) {
  return launch_at(true, kernel, grid, arguments...);
}

inline unsigned char* dynamic_shared() { return emulation::shared_memory(); }

}  // namespace tilewise::cuda
