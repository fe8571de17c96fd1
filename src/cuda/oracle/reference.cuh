// cuda_reference: every option, any dtype and any head dimension. It is slow.
#pragma once

#include <cuda_runtime_api.h>

#include "problem/sequence.h"

namespace tilewise::cuda {

// Loads the kernels; on the current device.
cudaError_t load_reference();

// Computes out and lse on the stream. `table` (B) is that of fill_table(), or nullptr.
cudaError_t run_reference(const problem::Problem& problem, const problem::Sequence* table,
                          cudaStream_t stream);

// The arrays of the workspace of backward.
struct GradientWorkspace {
  problem::Sequence* table;  // (B); nullptr if the problem needs none
  double* deltas;            // (B, H, Sq), packed (H, T)
};

// Loads the kernels of backward; on the current device.
cudaError_t load_reference_gradient();

// Computes the gradients on the stream.
cudaError_t run_reference_gradient(const problem::Problem& problem,
                                   const GradientWorkspace& workspace, cudaStream_t stream);

}  // namespace tilewise::cuda
