// Runs problems whose tensors are PyTorch's, with the threads, streams and memory of PyTorch.
#pragma once

#include <tilewise/tilewise.h>

#include <cstdint>

namespace tilewise::torch_binding {

// Runs the operation where q is. Throws, with the library's message, if that fails.
void run(std::int32_t operation, const tilewise_problem& problem);

}  // namespace tilewise::torch_binding
