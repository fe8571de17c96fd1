// The host code that is common to the forward and the backward pass of the ladder.
#pragma once

#include "cuda/host/instances.h"
#include "cuda/host/traffic.h"
#include "cuda/ladder/kernel_table.h"
#include "cuda/ladder/parameters.h"
#include "cuda/sm80/host.h"

namespace tilewise::cuda::ladder {

using Start = cudaError_t (*)(const Parameters& parameters, std::int64_t blocks,
                              cudaStream_t stream);
struct StandardInstance {
  Load load;
  Start start_scores;
  Start start_values;
};

// The row of any table for a problem.
int row_for(const Problem& problem, bool score_mod);

// The instance of a table for a problem.
template <class Instances>
const auto& of_problem(const Instances& instances, const Problem& problem) {
  const auto row = static_cast<std::size_t>(row_for(problem, false));
  return instances[row][problem.dtype == TILEWISE_FP16 ? 1 : 0];
}

// Of cuda_standard.
const TileRow& standard_tile(const Problem& problem);
const StandardInstance& standard_instance(const Problem& problem);

// Checks what both rungs need, forward and backward.
problem::Status check_problem(const Problem& problem, int (*q_tile_for)(const Problem&, bool));
// Checks the same and the number of rows of S.
problem::Status check_standard(const Problem& problem);

// The number of rows of lse: (B, H, Sq), packed (H, T).
problem::Checked rows_of(const Problem& problem);
// The elements of a row of S: whole tiles of keys.
std::int64_t score_stride(const Problem& problem);

inline TileSizes tiles_of(const TileRow& row) { return {row.config(false).q_tile(), row.k_tile}; }

template <class T>
T* at(void* workspace, std::int64_t byte) {
  return reinterpret_cast<T*>(static_cast<std::byte*>(workspace) + byte);
}

}  // namespace tilewise::cuda::ladder
