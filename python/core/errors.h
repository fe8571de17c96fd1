// Turns failures into Python exceptions.
#pragma once

#include <tilewise/tilewise.h>

namespace tilewise::python {

// Throws a Python exception of `type` with a message in printf format.
[[noreturn]] __attribute__((format(printf, 2, 3))) void raise(void* type, const char* format, ...);

// Does nothing for TILEWISE_OK; else throws ValueError, NotImplementedError, MemoryError or
// RuntimeError with the library's message.
void check(tilewise_status status);

}  // namespace tilewise::python
