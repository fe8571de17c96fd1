// tilewise_append_run() for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace tilewise::python {

void bind_append(nanobind::module_& module);

}  // namespace tilewise::python
