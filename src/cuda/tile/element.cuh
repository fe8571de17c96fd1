// Reads and writes elements of any dtype, for code that need not be fast.
#pragma once

#include "math/number.h"
#include "problem/problem.h"

namespace tilewise::cuda {

__device__ __forceinline__ double read_element(const void* data, std::int32_t dtype,
                                               std::int64_t offset) {
  switch (dtype) {
    case TILEWISE_FP64:
      return static_cast<const double*>(data)[offset];
    case TILEWISE_FP32:
      return math::load<double>(static_cast<const float*>(data)[offset]);
    case TILEWISE_BF16:
      return math::load<double>(static_cast<const math::BFloat16*>(data)[offset]);
    default:
      return math::load<double>(static_cast<const math::Float16*>(data)[offset]);
  }
}

// Calls `function` with the elements of a view as an array of their type.
template <class Function>
__device__ __forceinline__ auto with_elements(const problem::View& view, const Function& function) {
  switch (view.dtype) {
    case TILEWISE_FP64:
      return function(static_cast<const double*>(view.data));
    case TILEWISE_FP32:
      return function(static_cast<const float*>(view.data));
    case TILEWISE_BF16:
      return function(static_cast<const math::BFloat16*>(view.data));
    default:
      return function(static_cast<const math::Float16*>(view.data));
  }
}

__device__ __forceinline__ void write_element(void* data, std::int32_t dtype, std::int64_t offset,
                                              double x) {
  switch (dtype) {
    case TILEWISE_FP64:
      return math::store(x, static_cast<double*>(data) + offset);
    case TILEWISE_FP32:
      return math::store(x, static_cast<float*>(data) + offset);
    case TILEWISE_BF16:
      return math::store(x, static_cast<math::BFloat16*>(data) + offset);
    default:
      return math::store(x, static_cast<math::Float16*>(data) + offset);
  }
}

__device__ __forceinline__ double read_element(const problem::View& view, std::int64_t offset) {
  return read_element(view.data, view.dtype, offset);
}
__device__ __forceinline__ void write_element(const problem::View& view, std::int64_t offset,
                                              double x) {
  write_element(view.data, view.dtype, offset, x);
}

}  // namespace tilewise::cuda
