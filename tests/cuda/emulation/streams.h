// Streams of the emulated device. Mostly the work of all of them is done when it is started. With
// $TILEWISE_EMULATED_STREAMS=late each keeps its work until it is waited for, so that work which
// forgets to wait for another stream comes too early, or too late.
#pragma once

#include <functional>

#include "cuda_runtime_api.h"

namespace tilewise::emulation {

bool are_late();

// Does some work in the order of the stream. What it returns is the result of a later wait if the
// work is late.
cudaError_t enqueue(cudaStream_t stream, const std::function<cudaError_t()>& work);

// Does the work of a stream so far, and what it waits for.
cudaError_t finish_stream(cudaStream_t stream);

}  // namespace tilewise::emulation
