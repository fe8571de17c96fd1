// The check of struct sizes at the C interface.
#pragma once

#include <cstddef>
#include <cstdint>

#include "problem/status.h"

namespace tilewise::capi {

using problem::Status;

// A caller that was built with a newer header passes a larger struct. That is valid if the part
// that this library does not know is zero.
Status check_struct(const char* name, const void* pointer, std::size_t given, std::size_t known);

template <class Struct>
Status check_struct(const char* name, const Struct* pointer) {
  if (pointer == nullptr) return problem::fail(TILEWISE_INVALID_ARGUMENT, "%s: is NULL", name);
  return check_struct(name, pointer, pointer->struct_size, sizeof(Struct));
}

Status check_operation(std::int32_t operation);

}  // namespace tilewise::capi
