// The host code that is common to the kernels whose blocks compute a tile of queries each: checks,
// workspace, parameters, and the launches before the kernel.
#pragma once

#include <cstddef>

#include "cuda/host/device.h"
#include "cuda/host/scheduling.h"
#include "cuda/sm80/parameters.h"

namespace tilewise::cuda::sm80 {

// Checks that row numbers and the number of tiles of q_tile queries fit 32 bits.
problem::Status check_tile_count(const Problem& problem, int q_tile);

// Checks that a table has a kernel for the problem: D and Dv are at most max_columns, a row fits
// the device's shared memory (row_for(problem, score_mod) is not -1; the smallest takes min_bytes),
// and the tiles can be numbered.
problem::Status check_tiles(const Problem& problem, std::int64_t max_columns, int min_bytes,
                            int (*row_for)(const Problem&, bool),
                            int (*q_tile_for)(const Problem&, bool));

// The shared memory that a block may use: the device's, or less if TILEWISE_CUDA_SHARED_BYTES says
// so, which lets a large GPU run the kernels for small ones. 0 if there is no device.
std::int64_t shared_bytes(const Problem& problem);

// Whether scores need more than a positive scale inside of the exponent, or probs are dropped.
bool needs_score_mod(const Problem& problem);

// The offsets of the arrays in the workspace, in bytes.
class Workspace : public problem::Arena {
 public:
  explicit Workspace(const Problem& problem);

  std::int64_t table;
  std::int64_t tile_starts;
  std::int64_t bands;
};

// `score_mod`: the kernel applies the scale to the scores, before the exponent.
Parameters parameters_for(const Problem& problem, int q_tile, bool score_mod,
                          const Workspace& offsets, void* workspace);

// Starts the kernels that come before the forward kernel.
cudaError_t start_preparation(const Parameters& parameters, int q_tile, cudaStream_t stream);

// Starts all kernels of a run on the stream, without waiting. start(blocks, stream) starts the
// forward kernels, with a block for each tile of queries that there may be.
template <class Start>
problem::Status run_tiles(const Parameters& parameters, int q_tile, void* stream, const char* what,
                          const Start& start) {
  const Problem& problem = parameters.problem;
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  const cudaError_t error = start_preparation(parameters, q_tile, stream_of(stream));
  const std::int64_t blocks = max_tiles(problem, q_tile).value;
  if (error != cudaSuccess || blocks == 0 || problem.batch == 0) return check(error, what);
  return check(start(blocks, stream_of(stream)), what);
}

}  // namespace tilewise::cuda::sm80
