// From the public tilewise_problem to a Problem, or to one line that names the argument, its value
// and the limit.
#pragma once

#include "problem/problem.h"
#include "problem/status.h"

namespace tilewise::problem {

// Checks everything that does not need memory (struct size, options, shapes, dtypes, strides,
// devices) and fills `problem`. Data pointers are copied, not looked at.
Status make_problem(Operation operation, const tilewise_problem& request, Problem* problem);

// Checks the pointers: present where there are elements, outputs not shared with inputs or with
// each other.
Status check_pointers(Operation operation, const tilewise_problem& request);

// Checks the contents of cu_seqlens, seqused_k and slices (reads them: CPU memory only).
Status check_contents(const Problem& problem);

}  // namespace tilewise::problem
