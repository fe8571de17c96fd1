// tilewise_quantise() for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace tilewise::python {

void bind_quantise(nanobind::module_& module);

}  // namespace tilewise::python
