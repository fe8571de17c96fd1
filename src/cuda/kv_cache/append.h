// Appends to a cache in device memory. A build without CUDA has it, too (absent.cc).
#pragma once

#include "problem/append.h"

namespace tilewise::cuda {

// Starts the kernel on the stream.
problem::Status append(const problem::Append& task, void* stream);

}  // namespace tilewise::cuda
