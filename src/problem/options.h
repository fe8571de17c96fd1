// Reads the options of a request: numbers and flags, no tensors.
#pragma once

#include "problem/problem.h"
#include "problem/status.h"

namespace tilewise::problem {

// Checks every option but softmax_scale and the lengths, and stores them.
Status read_options(const tilewise_problem& request, Problem* problem);

// Checks and stores softmax_scale. The default depends on problem->head_dim.
Status read_scale(const tilewise_problem& request, Problem* problem);

}  // namespace tilewise::problem
