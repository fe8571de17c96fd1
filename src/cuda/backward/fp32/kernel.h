// The functions that start the compiled fp32 backward kernels.
#pragma once

#include "cuda/backward/fp32/kernel_table.h"
#include "cuda/backward/parameters.h"

namespace tilewise::cuda::backward::fp32 {

// A compiled kernel, given by a row of the table.
template <int kRow>
struct BackwardKernel {
  static cudaError_t load();
  // Computes dK and dV and fills dq_sums, with a block for each tile of keys that there may be.
  static cudaError_t start(const Parameters& parameters, std::int64_t blocks, cudaStream_t stream);
  // Writes dQ from dq_sums, with a block for each tile of queries that there may be.
  static cudaError_t start_dq(const Parameters& parameters, std::int64_t blocks,
                              cudaStream_t stream);
  // Writes dBias, with a block for each tile of the bias.
  static cudaError_t start_dbias(const Parameters& parameters, std::int64_t blocks,
                                 cudaStream_t stream);
};

}  // namespace tilewise::cuda::backward::fp32
