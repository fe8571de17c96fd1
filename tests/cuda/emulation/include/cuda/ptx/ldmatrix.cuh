// src/cuda/ptx/ldmatrix.cuh for the emulation.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/emulation/block.h"

namespace tilewise::cuda::ptx {

// The arguments of a lane to ldmatrix.x4: its address and its registers.
struct MatrixLoad {
  std::uint32_t* to;  // (4)
  std::uint32_t address;
};

// Matrix i: the rows at the addresses of lanes 8 i to 8 i + 7. elements (8, 8)
inline void read_matrix(const emulation::Requests& requests, unsigned i,
                        std::uint16_t (&elements)[8][8]) {
  for (unsigned row = 0; row < 8; ++row) {
    const auto* const load = static_cast<const MatrixLoad*>(requests[8 * i + row]);
    std::memcpy(elements[row], emulation::from_shared(load->address, 16, "ldmatrix"), 16);
  }
}

template <bool kTransposed>
void perform_matrix_load(const emulation::Requests& requests) {
  for (unsigned i = 0; i < 4; ++i) {
    std::uint16_t elements[8][8];
    read_matrix(requests, i, elements);
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned first = lane / 4;
      const unsigned second = lane % 4 * 2;
      const std::uint32_t low = kTransposed ? elements[second][first] : elements[first][second];
      const std::uint32_t high =
          kTransposed ? elements[second + 1][first] : elements[first][second + 1];
      static_cast<const MatrixLoad*>(requests[lane])->to[i] = low | high << 16;
    }
  }
}

inline void ldmatrix_x4(std::uint32_t (&to)[4], std::uint32_t address) {
  MatrixLoad load = {to, address};
  emulation::meet_warp(~0u, perform_matrix_load<false>, &load);
}

inline void ldmatrix_x4_trans(std::uint32_t (&to)[4], std::uint32_t address) {
  MatrixLoad load = {to, address};
  emulation::meet_warp(~0u, perform_matrix_load<true>, &load);
}

}  // namespace tilewise::cuda::ptx
