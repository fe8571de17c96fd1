// src/cuda/ptx/reduction.cuh for the emulation.
#pragma once

#include "cuda/emulation/block.h"
#include "cuda/emulation/device_memory.h"
#include "cuda/emulation/races.h"
#include "cuda/ptx/arithmetic.cuh"

namespace tilewise::cuda::ptx {

// Denormal numbers are read and written as zero.
inline TILEWISE_UNCHECKED void red_add(float* to, float x) {
  emulation::record_access(to, sizeof(x), emulation::Access::kAtomic);
  if (!emulation::is_device_memory(to, sizeof(x)))
    emulation::fail("red.add: 4 bytes at %p are not memory of the device", static_cast<void*>(to));
  *to = flushed(flushed(*to) + flushed(x));
}

}  // namespace tilewise::cuda::ptx
