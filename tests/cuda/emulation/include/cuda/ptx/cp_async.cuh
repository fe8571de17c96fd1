// src/cuda/ptx/cp_async.cuh for the emulation.
#pragma once

#include <cstdint>

#include "cuda/emulation/cp_async.h"

namespace tilewise::cuda::ptx {

inline void cp_async_16(std::uint32_t to, const void* from, bool inside) {
  emulation::begin_copy(to, inside ? from : nullptr, 16);
}

inline void cp_async_16(std::uint32_t to, const void* from) { emulation::begin_copy(to, from, 16); }

inline void cp_async_4(std::uint32_t to, const void* from, bool inside) {
  emulation::begin_copy(to, inside ? from : nullptr, 4);
}

inline void cp_async_commit() { emulation::cp_async_commit(); }

template <int kGroups>
void cp_async_wait() {
  emulation::cp_async_wait(kGroups);
}

}  // namespace tilewise::cuda::ptx
