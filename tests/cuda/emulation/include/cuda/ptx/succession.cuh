// src/cuda/ptx/succession.cuh for the emulation: kernels run one after the other, but one that may
// begin early is looked at.
#pragma once

#include "cuda/emulation/block.h"

namespace tilewise::cuda::ptx {

inline void admit_next_kernel() {}
inline void wait_for_kernel_before() { emulation::follow_kernel_before(); }

}  // namespace tilewise::cuda::ptx
