// The parameters of the Hopper backward kernels.
#pragma once

#include <cuda.h>

#include "cuda/backward/parameters.h"
#include "cuda/host/tensor_map.h"

namespace tilewise::cuda::backward::sm90 {

using cuda::sm90::TensorMap;

struct Parameters : backward::Parameters {
  TensorMap q, k, v, dout;
  // Gradients of the inputs' type that can be written 16 bytes at a time.
  bool wide_dq, wide_dk, wide_dv;
};

}  // namespace tilewise::cuda::backward::sm90
