// src/cuda/tile/band_reads.cuh for the emulation, which counts.
#pragma once

#include "cuda/emulation/band_read_count.h"

namespace tilewise::cuda::tile {

inline void count_band_read() { ++emulation::band_reads; }

}  // namespace tilewise::cuda::tile
