// src/cuda/ptx/named_barrier.cuh for the emulation.
#pragma once

#include <cstdint>

#include "cuda/emulation/machine.h"

namespace tilewise::cuda::ptx {

inline void named_barrier_sync(std::uint32_t name, std::uint32_t threads) {
  emulation::block().barriers.named_barrier_sync(name, threads);
}
inline void named_barrier_arrive(std::uint32_t name, std::uint32_t threads) {
  emulation::block().barriers.named_barrier_arrive(name, threads);
}

}  // namespace tilewise::cuda::ptx
