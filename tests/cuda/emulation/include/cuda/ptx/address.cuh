// src/cuda/ptx/address.cuh for the emulation.
#pragma once

#include <cstdint>

#include "cuda/emulation/block.h"

namespace tilewise::cuda::ptx {

inline std::uint32_t shared_address(const void* pointer) { return emulation::to_shared(pointer); }

inline std::uint32_t opaque(std::uint32_t x) { return x; }
template <class T>
T& opaque(T& x) {
  return x;
}

}  // namespace tilewise::cuda::ptx
