// src/cuda/ptx/pdl.cuh for the emulation. Kernels run one after the other, but the emulation checks
// that those launched with PDL wait.
#pragma once

#include "cuda/emulation/block.h"

namespace tilewise::cuda::ptx {

inline void launch_dependents() {}
inline void wait_for_dependency() { emulation::wait_for_dependency(); }

}  // namespace tilewise::cuda::ptx
