// Token plans that Python holds. They are capsules: an object of a class of ours in a graph of
// PyTorch, which is not freed when Python ends, would be reported as a leak.
#pragma once

#include <nanobind/nanobind.h>
#include <tilewise/tilewise_distributed.h>

namespace tilewise::python {

// Returns the token plan of a capsule, which owns it, or NULL for None.
const tilewise_token_plan* token_plan_of(nanobind::handle capsule);

void bind_token_plan(nanobind::module_& module);

}  // namespace tilewise::python
