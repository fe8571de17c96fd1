// Checks of single tensors, shared by the files of the validation.
#pragma once

#include "problem/problem.h"
#include "problem/status.h"

namespace tilewise::problem {

#define TILEWISE_RETURN_IF_ERROR(expression)                                   \
  do {                                                                         \
    if (const Status error_status = (expression); error_status != TILEWISE_OK) \
      return error_status;                                                     \
  } while (false)

inline long long printable(std::int64_t value) { return static_cast<long long>(value); }

// "(2, 3, 4)", for messages.
struct ShapeText {
  char text[96];
};
ShapeText shape_text(int rank, const std::int64_t* shape);

bool is_floating(std::int32_t dtype);

// Checks rank, dtype, device, shape and strides of one tensor; an absent tensor passes.
Status check_tensor(const char* name, const tilewise_tensor& tensor);

// Checks the rank; `letters` names the expected shape in the message, as in "(B, H, Sq)".
Status check_rank(const char* name, const tilewise_tensor& tensor, int rank, const char* letters);
Status check_shape(const char* name, const tilewise_tensor& tensor, int rank,
                   const std::int64_t* expected, const char* letters);

Status check_dtype(const char* name, const tilewise_tensor& tensor, std::int32_t first,
                   std::int32_t second);

Status check_innermost(const char* name, const tilewise_tensor& tensor);

// Checks that a tensor is on the device of q. An absent one passes.
Status check_device(const char* name, const tilewise_tensor& tensor, const tilewise_tensor& q);

// Returns the stride of a dimension, or 0 where its size makes the stride meaningless.
std::int64_t stride_of(const tilewise_tensor& tensor, int dimension);

}  // namespace tilewise::problem
