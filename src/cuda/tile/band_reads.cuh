// Counts the bands that are read from global memory in the emulation of the kernels, which replaces
// this file (tests/cuda/emulation). On a GPU nothing is counted.
#pragma once

namespace tilewise::cuda::tile {

__device__ __forceinline__ void count_band_read() {}

}  // namespace tilewise::cuda::tile
