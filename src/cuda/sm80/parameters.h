// The parameters of a kernel, and the functions that start kernels.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/sm80/kernel_config.h"
#include "cuda/tile/bands.h"
#include "cuda/tile/pages.h"
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

// Tensors that can be read or written 16 bytes at a time.
struct Aligned16 {
  bool q, k, v, out;
};

// Tensors that can be read so and whose rows fill the rows of the kernel's tiles.
struct FullRows {
  bool k, v;
};

struct Parameters {
  Problem problem;
  const Sequence* table;     // (B), nullptr for dense batches
  Schedule schedule;         // for dense queries
  PackedSchedule packed;     // for packed queries
  const tile::Band* bands;   // (slices), and their boxes: tile::BandTable
  std::int32_t window_left;  // as problem's, at most tile::kMaxLength
  std::int32_t window_right;
  float scale_log2;  // scale * log2(e): exp(scale * x) = exp2(scale_log2 * x)
  tile::ScoreScaling scaling;
  tile::PairLoads pair_loads;
  Aligned16 aligned16;
  FullRows full_rows;
  tile::Pages pages;
};

using Start = cudaError_t (*)(const Parameters& parameters, std::int64_t blocks,
                              cudaStream_t stream);

// A compiled forward kernel, given by a row of the table and a type. CMakeLists.txt generates the
// source files that instantiate them.
template <int kRow, bool kFp16>
struct ForwardKernel {
  static cudaError_t load();
  static cudaError_t start(const Parameters& parameters, std::int64_t blocks, cudaStream_t stream);
};

// Loads the kernels that run before the forward kernel, on the current device.
cudaError_t load_common_kernels();

// Fills tile_starts (B + 1) of a packed batch: the number of tiles of queries, or of keys, before
// each sequence.
enum class Side : std::int32_t { kQueries, kKeys };
cudaError_t start_tile_starts(const Parameters& parameters, Side side, int tile,
                              const std::int32_t* tile_starts, cudaStream_t stream);

}  // namespace tilewise::cuda::sm80
