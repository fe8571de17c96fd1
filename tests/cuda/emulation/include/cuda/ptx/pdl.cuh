// src/cuda/ptx/pdl.cuh for the emulation: kernels run one after the other, but one that may
// begin early is looked at.
#pragma once

#include "cuda/emulation/block.h"

namespace tilewise::cuda::ptx {

inline void launch_dependents() {}
inline void wait_for_dependency() { emulation::follow_kernel_before(); }

}  // namespace tilewise::cuda::ptx
