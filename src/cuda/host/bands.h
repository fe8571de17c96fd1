// The table of bands of a list of slices (tile/bands.h): its place in a workspace, and the kernel
// that fills it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/tile/bands.h"
#include "problem/problem.h"

namespace tilewise::cuda {

using problem::Problem;

// The cells by which the bands are sorted.
tile::BandCells band_cells_for(const Problem& problem);

// The bytes of the table, 0 without slices. They fit int64, since those of the slices do.
std::int64_t band_table_bytes(const Problem& problem);

// Loads the kernel of start_bands() on the current device.
cudaError_t load_band_kernel();

// Fills the table that begins with `bands`, and sets `counter` to 0, unless it is nullptr.
cudaError_t start_bands(const Problem& problem, const tile::Band* bands, cudaStream_t stream,
                        unsigned* counter = nullptr);

}  // namespace tilewise::cuda
