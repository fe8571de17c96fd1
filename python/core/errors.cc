#include "errors.h"

#include <nanobind/nanobind.h>

#include <cstdarg>
#include <cstdio>

namespace nb = nanobind;

namespace tilewise::python {

void raise(void* type, const char* format, ...) {
  char text[1024];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  PyErr_SetString(static_cast<PyObject*>(type), text);
  throw nb::python_error();
}

void check(tilewise_status status) {
  switch (status) {
    case TILEWISE_OK:
      return;
    case TILEWISE_INVALID_ARGUMENT:
      raise(PyExc_ValueError, "%s", tilewise_last_error());
    case TILEWISE_UNSUPPORTED:
      raise(PyExc_NotImplementedError, "%s", tilewise_last_error());
    case TILEWISE_NO_MEMORY:
      raise(PyExc_MemoryError, "%s", tilewise_last_error());
    default:
      raise(PyExc_RuntimeError, "%s: %s", tilewise_status_name(status), tilewise_last_error());
  }
}

}  // namespace tilewise::python
