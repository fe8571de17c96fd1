// src/cuda/tile/slow_path.cuh for the emulation, which counts.
#pragma once

#include "cuda/emulation/slow_path_counts.h"

namespace tilewise::cuda::tile {

inline void count_slow_path(SlowPath path) { ++emulation::slow_path_count(path); }

}  // namespace tilewise::cuda::tile
