// No exception crosses the C interface.
#pragma once

#include <exception>
#include <new>

#include "problem/status.h"

namespace tilewise::capi {

inline problem::Status no_memory(const char* what) {
  return problem::fail(TILEWISE_NO_MEMORY, "no memory for %s", what);
}

// Runs a function that may allocate; `what` names what it makes.
template <class Function>
problem::Status without_exceptions(const char* what, Function function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return no_memory(what);
  } catch (const std::exception& error) {
    return problem::fail(TILEWISE_INTERNAL_ERROR, "%s: %s", what, error.what());
  }
}

}  // namespace tilewise::capi
