// Launches on the emulated device.
#pragma once

#include "cuda/emulation/block.h"
#include "cuda_runtime_api.h"

namespace tilewise::emulation {

// Runs a launch if its sizes are valid, which are checked as a GPU does. cudaGetErrorString gives
// what was wrong.
cudaError_t launch(const void* kernel, const Launch& launch);

}  // namespace tilewise::emulation
