// The host code of the backward pass: workspace, parameters, and the launches around the main
// kernel.
#pragma once

#include <cstddef>
#include <initializer_list>

#include "cuda/backward/parameters.h"
#include "cuda/host/device.h"
#include "cuda/host/scheduling.h"
#include "cuda/host/traffic.h"
#include "cuda/sm80/host.h"
#include "problem/kernel.h"

namespace tilewise::cuda::backward {

// Whether the blocks that add to a row of dQ take turns.
bool has_turns(const Problem& problem);

// Checks that the tiles of keys can be numbered.
problem::Status check_key_tiles(const Problem& problem, std::int64_t k_tile);

// The offsets of the arrays in the workspace, in bytes.
class Workspace : public cuda::sm80::Workspace {
 public:
  // Has room for kernels with any of these shapes. A plan does not know the scale, which decides
  // between two kernels.
  Workspace(const Problem& problem, std::initializer_list<TileShape> shapes);

  std::int64_t key_tile_starts;
  std::int64_t statistics;
  std::int64_t dq_sums;
  std::int64_t turns;
  std::int64_t ticket;
};

// longest_first: blocks with many queries come first.
Parameters parameters_for(const Problem& problem, const TileShape& shape, int k_tile,
                          bool score_mod, const Workspace& offsets, void* workspace,
                          bool longest_first);

// Starts the kernels that come before the main kernel.
cudaError_t start_preparation(const Parameters& parameters, int k_tile, cudaStream_t stream);

// The kernels of a configuration whose blocks add to dQ, with a kernel for dBias. Each start() gets
// the number of blocks: of tiles of keys, of queries and of the bias.
using Start = cudaError_t (*)(const Parameters& parameters, std::int64_t blocks,
                              cudaStream_t stream);
struct KernelSet {
  TileShape shape;
  int k_tile;
  Load load;
  Start start;
  Start start_dq;
  Start start_dbias;
};

// The compiled kernels of a row of a table of kernels.
template <class Kernel, class TileRow>
constexpr KernelSet kernel_set(const TileRow& row) {
  return {{row.q_tile, row.columns}, row.k_tile,         Kernel::load, Kernel::start,
          Kernel::start_dq,          Kernel::start_dbias};
}

// The tiles of kernels whose blocks compute a tile of keys each, as traffic depends on them.
inline GradientTiles gradient_tiles(const TileShape& shape, int k_tile) {
  return {{shape.q_tile, k_tile}, shape.columns, false};
}

// Checks that the tiles of the bias can be numbered, if dBias is asked for.
problem::Status check_bias_tiles(const Problem& problem, const KernelSet& kernels);

// Runs the kernels of a configuration. `what` begins the message of an error.
problem::Status run_kernels(const Problem& problem, const problem::RunContext& context,
                            const KernelSet& kernels, bool score_mod, const Workspace& offsets,
                            const char* what);

}  // namespace tilewise::cuda::backward
