// Conversion between arrays of files and tensors of the library.
#pragma once

#include <tilewise/tilewise.h>

#include <string>

#include "io/array.h"

namespace tilewise::cli {

// Returns a view of the array, which must outlive it. Throws UsageError, naming `name`, for an
// element type or a number of dimensions that the library does not support.
tilewise_tensor tensor_of(const std::string& name, const io::Array& array);

// Returns an array of uint8 as one of bool, with the same bytes. Throws UsageError for a number
// other than 0 and 1, with its position.
io::Array as_boolean(const std::string& name, const io::Array& array);

// Returns an array of int64 as one of int32. Throws UsageError for a number that does not fit, with
// its position.
io::Array as_int32(const std::string& name, const io::Array& array);

// Throws UsageError unless the element type is fp64, fp32, bf16, fp16, e4m3 or e5m2.
std::int32_t floating_dtype(const std::string& name, const io::Array& array);

io::ElementType element_type(std::int32_t dtype);

// Returns the array converted to the dtype, rounded to nearest even, or the array itself if it has
// that dtype already. For floating types only.
io::Array cast(const io::Array& array, std::int32_t dtype);

}  // namespace tilewise::cli
