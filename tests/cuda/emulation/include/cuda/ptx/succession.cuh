// src/cuda/ptx/succession.cuh for the emulation: kernels run one after the other.
#pragma once

namespace tilewise::cuda::ptx {

inline void admit_next_kernel() {}
inline void wait_for_kernel_before() {}

}  // namespace tilewise::cuda::ptx
