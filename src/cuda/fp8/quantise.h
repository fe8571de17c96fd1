// Quantisation of rows in device memory. A build without CUDA has it, too (absent.cc).
#pragma once

#include "problem/quantisation.h"

namespace tilewise::cuda {

// Starts the kernels on the stream. The results have the bits of the CPU.
problem::Status quantise(const problem::Quantisation& task, void* stream);

}  // namespace tilewise::cuda
