// Runs a quantisation: checks it, chooses the instruction set, allocates.
#pragma once

#include <tilewise/tilewise_quantise.h>

#include "problem/status.h"

namespace tilewise::plan {

// executor: nullptr is the default pool
problem::Status quantise(const tilewise_quantisation& request, const tilewise_executor* executor);

}  // namespace tilewise::plan
