// src/cuda/ptx/setmaxnreg.cuh for the emulation, which counts the registers.
#pragma once

#include "cuda/emulation/machine.h"

namespace tilewise::cuda::ptx {

template <int kRegisters>
void setmaxnreg_dec() {
  __syncwarp();
  emulation::block().barriers.setmaxnreg_dec(kRegisters);
}

template <int kRegisters>
void setmaxnreg_inc() {
  __syncwarp();
  emulation::block().barriers.setmaxnreg_inc(kRegisters);
}

}  // namespace tilewise::cuda::ptx
