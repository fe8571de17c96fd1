// What Python calls an array, as a tilewise_tensor: no copy, no framework.
#pragma once

#include <nanobind/nanobind.h>
#include <tilewise/tilewise.h>

namespace tilewise::python {

// Whether the library will write to it.
enum class Access { kRead, kWrite };

// A view of an array. The memory is the array's; `owner` keeps it for as long as this lives.
struct Array {
  tilewise_tensor tensor = {};
  nanobind::object owner;  // the DLPack capsule; nothing for a NumPy array, which its caller holds
};

// Reads `value` (NumPy and whatever else has __array_struct__ directly, all others through
// __dlpack__). `name` is what messages call it. `stream` is the caller's cudaStream_t as a number:
// a CUDA array's producer is asked to make its contents ready there.
// Throws TypeError for what is no array or has a dtype that no argument takes, ValueError for an
// array that cannot be shared or written to.
Array read_array(const char* name, nanobind::handle value, Access access, std::uintptr_t stream);

}  // namespace tilewise::python
