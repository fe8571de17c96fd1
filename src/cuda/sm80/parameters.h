// What a kernel is given.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/sm80/config.h"
#include "cuda/tile/bands.h"
#include "cuda/tile/neighbours.h"
#include "cuda/tile/scaling.h"
#include "cuda/tile/schedule.h"
#include "problem/sequence.h"

namespace tilewise::cuda::sm80 {

using problem::Problem;
using problem::Sequence;
using tile::PackedSchedule;
using tile::Schedule;
using tile::Work;

// Tensors that can be moved 16 bytes at a time.
struct Wide {
  bool q, k, v, out;
};

// Tensors whose rows can be moved so and are no shorter than those of the kernel's tiles.
struct Whole {
  bool k, v;
};

struct Parameters {
  Problem problem;
  const Sequence* table;     // (B), nullptr for dense batches
  Schedule schedule;         // of dense queries
  PackedSchedule packed;     // of packed ones
  const tile::Band* bands;   // (slices)
  std::uint16_t* marks;      // (work, q_tile / 16): rows for the careful path, a bit for each
  std::int32_t window_left;  // as problem's, at most tile::kLongest
  std::int32_t window_right;
  float unit;  // what a unit of a score is worth as an exponent of 2
  tile::Scaling scaling;
  tile::Neighbours neighbours;
  Wide wide;
  Whole whole;
};

using Start = cudaError_t (*)(const Parameters& parameters, std::int64_t blocks,
                              cudaStream_t stream);
using Load = cudaError_t (*)();

// A compiled kernel.
struct Instance {
  KernelConfig config;
  Load load;
  Start start;
};

// What stands around the kernels, on the current device.
cudaError_t load_support();

// Fills tile_starts (B + 1) of a packed batch.
cudaError_t start_tile_starts(const Parameters& parameters, int q_tile, cudaStream_t stream);

// Fills bands (slices).
cudaError_t start_bands(const Parameters& parameters, cudaStream_t stream);

// Computes the marked rows by the careful path (cuda/reference_row.cuh).
cudaError_t start_repair(const Parameters& parameters, int q_tile, int blocks, cudaStream_t stream);

}  // namespace tilewise::cuda::sm80
