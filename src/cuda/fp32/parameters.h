// What a kernel is given: the same as those of cuda/sm80.
#pragma once

#include "cuda/sm80/parameters.h"

namespace tilewise::cuda::fp32 {

using problem::Problem;
using sm80::Parameters;

// A compiled kernel.
struct Instance {
  sm80::Load load;
  sm80::Start start;
};

}  // namespace tilewise::cuda::fp32
