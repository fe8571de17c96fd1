// Functions report failure by a status code and a thread-local message of one line. Nothing here
// allocates or throws.
#pragma once

#include <tilewise/tilewise.h>

namespace tilewise::problem {

using Status = tilewise_status;

// Sets the thread's message, in printf format, and returns `code`. The message is cut at 511
// characters.
[[gnu::format(printf, 2, 3), gnu::cold]] Status fail(Status code, const char* format, ...);

// Returns the thread's message; "" after clear_message().
const char* message();
void clear_message();

}  // namespace tilewise::problem
