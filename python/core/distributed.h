// Distributed attention for Python: the functions of tilewise._core over tilewise_distributed.h.
#pragma once

#include <nanobind/nanobind.h>

namespace tilewise::python {

void bind_distributed(nanobind::module_& module);

}  // namespace tilewise::python
