// src/cuda/ptx/reduction.cuh for the emulation.
#pragma once

#include "cuda/emulation/block.h"
#include "cuda/emulation/device_memory.h"
#include "cuda/ptx/arithmetic.cuh"

namespace tilewise::cuda::ptx {

// Denormal numbers are read and written as zero.
inline void red_add(float* to, float x) {
  if (!emulation::is_device_memory(to, sizeof(x)))
    emulation::fail("red.add: 4 bytes at %p are not memory of the device", static_cast<void*>(to));
  *to = flushed(flushed(*to) + flushed(x));
}

}  // namespace tilewise::cuda::ptx
