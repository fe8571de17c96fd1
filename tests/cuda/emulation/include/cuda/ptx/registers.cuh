// src/cuda/ptx/registers.cuh for the emulation, which counts them.
#pragma once

#include "cuda/emulation/machine.h"

namespace tilewise::cuda::ptx {

template <int kRegisters>
void give_up_registers() {
  __syncwarp();
  emulation::block().barriers.give_up_registers(kRegisters);
}

template <int kRegisters>
void take_registers() {
  __syncwarp();
  emulation::block().barriers.take_registers(kRegisters);
}

}  // namespace tilewise::cuda::ptx
