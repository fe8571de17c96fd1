// The host's side of every kernel whose blocks compute a tile of queries each: what it asks of the
// device and the sizes, what it is given, and what is started before and after it.
#pragma once

#include <cstddef>
#include <initializer_list>

#include "cuda/host/device.h"
#include "cuda/host/scheduling.h"
#include "cuda/sm80/parameters.h"

namespace tilewise::cuda::sm80 {

// Sequences and work of tiles of q_tile queries fit 32 bits.
problem::Status check_tile_count(const Problem& problem, int q_tile);

// The sizes are those of a table's kernels: D and Dv up to most_columns, a row for what the device
// has of shared memory (row_for(problem, score_mod), -1: none; it takes at least least_bytes), and
// its tiles' work.
problem::Status check_tiles(const Problem& problem, std::int64_t most_columns, int least_bytes,
                            int (*row_for)(const Problem&, bool),
                            int (*q_tile_for)(const Problem&, bool));

// Shared memory that a block may use: the device's, or less (TILEWISE_CUDA_SHARED_BYTES), so that a
// large GPU runs what is made for small ones. 0: there is no device.
std::int64_t shared_bytes(const Problem& problem);

// Scores need more than a positive factor inside of the exponent, or probs are dropped.
bool needs_score_mod(const Problem& problem);

// The parts of the workspace.
class Workspace : public problem::Arena {
 public:
  // For kernels of any of these sizes of tiles: the scale, which a plan does not know, may call for
  // one or the other.
  Workspace(const Problem& problem, std::initializer_list<int> q_tiles);

  std::int64_t table;
  std::int64_t tile_starts;
  std::int64_t bands;
  std::int64_t marks;
};

// `score_mod`: the kernel applies the scale before the exponent.
Parameters parameters_for(const Problem& problem, int q_tile, bool score_mod,
                          const Workspace& places, void* workspace);

// Every launch before the kernel's own.
cudaError_t start_before(const Parameters& parameters, int q_tile, cudaStream_t stream);

// Starts what a run needs in the order of the stream; nothing waits. start(blocks, stream) starts
// the kernel's own part, a block for each tile of queries that there may be.
template <class Start>
problem::Status run_tiles(const Parameters& parameters, int q_tile, void* stream, const char* what,
                          const Start& start) {
  const Problem& problem = parameters.problem;
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  DeviceInfo device;
  const problem::Status found = find_device(problem.device_index, &device);
  if (found != TILEWISE_OK) return found;
  cudaError_t error = start_before(parameters, q_tile, stream_of(stream));
  const std::int64_t blocks = max_tiles(problem, q_tile).value;
  if (error != cudaSuccess || blocks == 0 || problem.batch == 0) return check(error, what);
  error = start(blocks, stream_of(stream));
  if (error == cudaSuccess)
    error = start_repair(parameters, q_tile, device.multiprocessors, stream_of(stream));
  return check(error, what);
}

}  // namespace tilewise::cuda::sm80
