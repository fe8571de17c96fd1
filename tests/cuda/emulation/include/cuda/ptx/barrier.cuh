// src/cuda/ptx/barrier.cuh for the emulation.
#pragma once

#include <cstdint>

#include "cuda/emulation/machine.h"

namespace tilewise::cuda::ptx {

inline void init_barrier(std::uint32_t barrier, std::uint32_t arrivals) {
  emulation::block().barriers.init(barrier, arrivals);
}
inline void fence_barrier_init() { emulation::block().barriers.fence_init(); }
inline void arrive(std::uint32_t barrier) { emulation::block().barriers.arrive(barrier, 0); }
inline void arrive_expecting(std::uint32_t barrier, std::uint32_t bytes) {
  emulation::block().barriers.arrive(barrier, bytes);
}
inline void wait(std::uint32_t barrier, std::uint32_t parity) {
  emulation::block().barriers.wait(barrier, parity);
}
inline bool test(std::uint32_t barrier, std::uint32_t parity) {
  return emulation::block().barriers.test(barrier, parity);
}
inline void sync_named(std::uint32_t name, std::uint32_t threads) {
  emulation::block().barriers.sync_named(name, threads);
}
inline void arrive_named(std::uint32_t name, std::uint32_t threads) {
  emulation::block().barriers.arrive_named(name, threads);
}

}  // namespace tilewise::cuda::ptx
