// Reads what Python calls an array as a tilewise_tensor, without a copy or a framework.
#pragma once

#include <nanobind/nanobind.h>
#include <tilewise/tilewise.h>

namespace tilewise::python {

// Says whether the library will write to the array.
enum class Access { kRead, kWrite };

// A view of an array. The array owns the memory; `owner` keeps it alive as long as the view lives.
struct Array {
  tilewise_tensor tensor = {};
  nanobind::object owner;  // the DLPack capsule; empty for a NumPy array, which the caller holds
};

// Reads `value` (NumPy and everything else with __array_struct__ directly, all others through
// __dlpack__). Messages call it `name`. `stream` is the caller's cudaStream_t as a number: the
// producer of a CUDA array must make its contents ready there. Throws TypeError for a value that is
// no array or has a dtype that no argument accepts, and ValueError for an array that cannot be
// shared or written to.
Array read_array(const char* name, nanobind::handle value, Access access, std::uintptr_t stream);

}  // namespace tilewise::python
