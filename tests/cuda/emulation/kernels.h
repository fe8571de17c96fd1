// Kernels as the emulated device knows them.
#pragma once

#include "cuda/emulation/block.h"
#include "cuda_runtime_api.h"

namespace tilewise::emulation {

// Runs a launch if the device can: sizes are checked as a GPU does. What was wrong is the message
// of the error that it returns (cudaGetErrorString).
cudaError_t launch(const void* kernel, const Launch& launch);

}  // namespace tilewise::emulation
