// src/cuda/ptx/stmatrix.cuh for the emulation.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/emulation/block.h"

namespace tilewise::cuda::ptx {

// The arguments of a lane to stmatrix.x4: its address and its pairs.
struct MatrixStore {
  const std::uint32_t* pairs;  // (4)
  std::uint32_t address;
};

inline void perform_matrix_store(const emulation::Requests& requests) {
  for (unsigned i = 0; i < 4; ++i) {
    for (unsigned lane = 0; lane < 32; ++lane) {
      const auto* const row = static_cast<const MatrixStore*>(requests[8 * i + lane / 4]);
      const auto* const own = static_cast<const MatrixStore*>(requests[lane]);
      unsigned char* const to = emulation::from_shared(row->address, 16, "stmatrix");
      std::memcpy(to + lane % 4 * 4, &own->pairs[i], 4);
    }
  }
}

inline void stmatrix_x4(std::uint32_t address, const std::uint32_t (&pairs)[4]) {
  MatrixStore store = {pairs, address};
  emulation::meet_warp(~0u, perform_matrix_store, &store);
}

}  // namespace tilewise::cuda::ptx
