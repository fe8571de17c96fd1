// The parameters of the fp32 kernels are those of cuda/sm80.
#pragma once

#include "cuda/sm80/parameters.h"

namespace tilewise::cuda::fp32 {

using problem::Problem;
using sm80::Parameters;

// A compiled kernel, given by a row of the table. CMakeLists.txt generates the source files that
// instantiate them.
template <int kRow>
struct ForwardKernel {
  static cudaError_t load();
  static cudaError_t start(const Parameters& parameters, std::int64_t blocks, cudaStream_t stream);
};

}  // namespace tilewise::cuda::fp32
