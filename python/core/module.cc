// tilewise._core: the C interface for Python. Everything that a user sees is in python/tilewise.
#include <nanobind/nanobind.h>
#include <tilewise/tilewise.h>

NB_MODULE(_core, module) { module.attr("version") = tilewise_version(); }
