// What a kernel is given: the same as those of cuda/sm80.
#pragma once

#include "cuda/sm80/parameters.h"

namespace tilewise::cuda::fp32 {

using problem::Problem;
using sm80::Parameters;

// A compiled kernel: a row of the table. Each is instantiated in a source file that CMakeLists.txt
// makes.
template <int kRow>
struct ForwardKernel {
  static cudaError_t load();
  static cudaError_t start(const Parameters& parameters, std::int64_t blocks, cudaStream_t stream);
};

}  // namespace tilewise::cuda::fp32
