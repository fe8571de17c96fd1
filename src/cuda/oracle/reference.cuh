// cuda_reference: every option, any dtype, any head dimension; slow.
#pragma once

#include <cuda_runtime_api.h>

#include "problem/sequence.h"

namespace tilewise::cuda {

// Loads the kernels; on the current device.
cudaError_t load_reference();

// out and lse on the stream. `table` (B) as fill_table() left it, or nullptr.
cudaError_t run_reference(const problem::Problem& problem, const problem::Sequence* table,
                          cudaStream_t stream);

}  // namespace tilewise::cuda
