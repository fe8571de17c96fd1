// The kernels of each operation in order of preference. A new kernel only has to be listed in
// registry.cc to be chosen, tested, benchmarked and shown.
#pragma once

#include <span>

#include "problem/kernel.h"

namespace tilewise::plan {

std::span<const problem::Kernel* const> kernels(problem::Operation operation);

const problem::Kernel* find_kernel(problem::Operation operation,
                                   const char* name);  // nullptr if there is none

}  // namespace tilewise::plan
