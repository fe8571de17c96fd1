// src/cuda/ptx/mbarrier.cuh for the emulation.
#pragma once

#include <cstdint>

#include "cuda/emulation/machine.h"

namespace tilewise::cuda::ptx {

inline void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  emulation::block().barriers.init(barrier, arrivals);
}
inline void mbarrier_invalidate(std::uint32_t barrier) {
  emulation::block().barriers.invalidate(barrier);
}
inline void fence_mbarrier_init() { emulation::block().barriers.fence_init(); }
inline void mbarrier_arrive(std::uint32_t barrier) {
  emulation::block().barriers.arrive(barrier, 0);
}
inline void mbarrier_arrive_expect_tx(std::uint32_t barrier, std::uint32_t bytes) {
  emulation::block().barriers.arrive(barrier, bytes);
}
inline void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  emulation::block().barriers.wait(barrier, parity);
}

}  // namespace tilewise::cuda::ptx
