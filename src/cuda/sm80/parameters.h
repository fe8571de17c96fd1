// What a kernel is given.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/sm80/kernel_config.h"
#include "cuda/tile/bands.h"
#include "cuda/tile/pair_loads.h"
#include "cuda/tile/scheduler.h"
#include "cuda/tile/score_scaling.h"
#include "problem/sequence.h"

namespace tilewise::cuda::sm80 {

using problem::Problem;
using problem::Sequence;
using tile::PackedSchedule;
using tile::Schedule;
using tile::TileCoord;

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
  const Sequence* table;    // (B), nullptr for dense batches
  Schedule schedule;        // of dense queries
  PackedSchedule packed;    // of packed ones
  const tile::Band* bands;  // (slices)
  std::uint16_t* marks;  // (work, q_tile / 16): rows for the non_finite_pass path, a bit for each
  std::int32_t window_left;  // as problem's, at most tile::kMaxLength
  std::int32_t window_right;
  float scale_log2;  // what a scale_log2 of a score is worth as an exponent of 2
  tile::ScoreScaling scaling;
  tile::PairLoads pair_loads;
  Wide wide;
  Whole whole;
};

using Start = cudaError_t (*)(const Parameters& parameters, std::int64_t blocks,
                              cudaStream_t stream);
using Load = cudaError_t (*)();

// A compiled forward kernel: a row of the table and a type. Each is instantiated in a source file
// that CMakeLists.txt makes.
template <int kRow, bool kFp16>
struct ForwardKernel {
  static cudaError_t load();
  static cudaError_t start(const Parameters& parameters, std::int64_t blocks, cudaStream_t stream);
};

// What stands around the kernels, on the current device.
cudaError_t load_support();

// Fills tile_starts (B + 1) of a packed batch.
cudaError_t start_tile_starts(const Parameters& parameters, int q_tile, cudaStream_t stream);

// Fills bands (slices).
cudaError_t start_bands(const Parameters& parameters, cudaStream_t stream);

// Computes the marked rows by the non_finite_pass path (cuda/reference_row.cuh).
cudaError_t start_repair(const Parameters& parameters, int q_tile, int blocks, cudaStream_t stream);

}  // namespace tilewise::cuda::sm80
