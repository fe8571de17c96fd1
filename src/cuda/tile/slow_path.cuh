// Counts slow paths in the emulation of the kernels, which replaces this file
// (tests/cuda/emulation). On a GPU nothing is counted.
#pragma once

#include "cuda/tile/slow_path.h"

namespace tilewise::cuda::tile {

// One thread of a block calls it.
__device__ __forceinline__ void count_slow_path(SlowPath) {}

}  // namespace tilewise::cuda::tile
