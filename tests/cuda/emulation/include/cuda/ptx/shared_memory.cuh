// src/cuda/ptx/shared_memory.cuh for the emulation.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/emulation/block.h"
#include "cuda_runtime.h"

namespace tilewise::cuda::ptx {

inline uint4 ld_shared_v4(std::uint32_t address) {
  uint4 result;
  std::memcpy(&result, emulation::from_shared(address, 16, "ld.shared.v4"), 16);
  return result;
}

inline float ld_shared(std::uint32_t address) {
  float result;
  std::memcpy(&result, emulation::from_shared(address, 4, "ld.shared"), 4);
  return result;
}

inline void st_shared_v2(std::uint32_t address, float low, float high) {
  const float pair[] = {low, high};
  std::memcpy(emulation::from_shared(address, 8, "st.shared.v2"), pair, 8);
}

}  // namespace tilewise::cuda::ptx
