// Turns the public tilewise_problem into a Problem, or fails with one line that names the argument,
// its value and the limit.
#pragma once

#include "problem/problem.h"
#include "problem/status.h"

namespace tilewise::problem {

// Checks everything that needs no access to memory (struct size, options, shapes, dtypes, strides,
// devices) and fills `problem`. Data pointers are copied, not followed.
Status make_problem(Operation operation, const tilewise_problem& request, Problem* problem);

// Checks the pointers: they are set where there are elements, and outputs share no memory with
// inputs or with each other.
Status check_pointers(Operation operation, const tilewise_problem& request);

// Checks the contents of cu_seqlens, seqused_k, page_table and slices. It reads them, so they must
// be in CPU memory.
Status check_contents(const Problem& problem);

}  // namespace tilewise::problem
