// src/cuda/ptx/global_store.cuh for the emulation.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/emulation/block.h"
#include "cuda/emulation/device_memory.h"

namespace tilewise::cuda::ptx {

template <class Chunk>
void st_global_v4(void* to, Chunk chunk) {
  static_assert(sizeof(Chunk) == 16);
  if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0)
    emulation::fail("st.global.v4: %p is no multiple of 16", to);
  if (!emulation::is_device_memory(to, sizeof(chunk)))
    emulation::fail("st.global.v4: 16 bytes at %p are not memory of the device", to);
  std::memcpy(to, &chunk, sizeof(chunk));
}

inline void st_global(void* to, float x) {
  if (reinterpret_cast<std::uintptr_t>(to) % sizeof(x) != 0)
    emulation::fail("st.global: %p is no multiple of 4", to);
  if (!emulation::is_device_memory(to, sizeof(x)))
    emulation::fail("st.global: 4 bytes at %p are not memory of the device", to);
  std::memcpy(to, &x, sizeof(x));
}

}  // namespace tilewise::cuda::ptx
