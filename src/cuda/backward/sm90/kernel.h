// The functions that start the compiled Hopper backward kernels.
#pragma once

#include "cuda/backward/sm90/kernel_table.h"
#include "cuda/backward/sm90/parameters.h"

namespace tilewise::cuda::backward::sm90 {

// A compiled kernel, given by a row of the table and a type.
template <int kRow, bool kFp16>
struct BackwardKernel {
  static cudaError_t load();
  // Computes dK and dV and fills dq_sums, with a block, or a pair of them, for each tile of keys
  // that there may be.
  static cudaError_t start(const Parameters& parameters, std::int64_t tiles, cudaStream_t stream);
  // Writes dQ from dq_sums, with a block for each tile of queries that there may be.
  static cudaError_t start_dq(const Parameters& parameters, std::int64_t blocks,
                              cudaStream_t stream);
};

}  // namespace tilewise::cuda::backward::sm90
