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

}  // namespace tilewise::cuda
