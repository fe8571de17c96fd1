#include "problem/tensor_checks.h"

#include <cstdio>
#include <cstring>

#include "problem/checked.h"
#include "problem/tensors.h"

namespace tilewise::problem {

bool is_floating(std::int32_t dtype) {
  return (dtype >= TILEWISE_FP64 && dtype <= TILEWISE_FP16) || is_fp8(dtype);
}

ShapeText shape_text(int rank, const std::int64_t* shape) {
  ShapeText result = {"()"};
  int used = 0;
  for (int d = 0; d < rank && used < 90; ++d) {
    used += std::snprintf(result.text + used, sizeof(result.text) - static_cast<std::size_t>(used),
                          "%s%lld", d == 0 ? "(" : ", ", printable(shape[d]));
  }
  if (rank > 0 && used < 95)
    std::snprintf(result.text + used, sizeof(result.text) - static_cast<std::size_t>(used), ")");
  return result;
}

Status check_tensor(const char* name, const tilewise_tensor& tensor) {
  if (tensor.rank < 0 || tensor.rank > TILEWISE_MAX_RANK) {
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: rank is %d, must be 0 (absent) to %d", name,
                tensor.rank, TILEWISE_MAX_RANK);
  }
  if (tensor.rank == 0) return TILEWISE_OK;
  if (dtype_size(tensor.dtype) == 0) {
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: dtype is %d, which names no dtype", name,
                tensor.dtype);
  }
  const bool on_cpu = tensor.device == TILEWISE_CPU && tensor.device_index == 0;
  const bool on_cuda = tensor.device == TILEWISE_CUDA && tensor.device_index >= 0;
  if (!on_cpu && !on_cuda) {
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: device is %d:%d, must be 0:0 (cpu) or 1:n (cuda)",
                name, tensor.device, tensor.device_index);
  }
  Checked reach = {dtype_size(tensor.dtype)};
  bool empty = false;
  for (int d = 0; d < tensor.rank; ++d) {
    if (tensor.shape[d] < 0) {
      return fail(TILEWISE_INVALID_ARGUMENT, "%s: shape[%d] is %lld, must be >= 0", name, d,
                  printable(tensor.shape[d]));
    }
    empty = empty || tensor.shape[d] == 0;
    if (tensor.shape[d] <= 1) continue;
    const Checked stride = tensor.strides[d] < 0 ? Checked{-1} * Checked{tensor.strides[d]}
                                                 : Checked{tensor.strides[d]};
    reach = reach + Checked{tensor.shape[d] - 1} * stride * Checked{dtype_size(tensor.dtype)};
  }
  // No address space is larger than this bound, and two reaches can be added without overflow.
  if (!empty && (!reach.valid || reach.value >> 61 != 0)) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "%s: shape %s with its strides reaches beyond 2^61 bytes", name,
                shape_text(tensor.rank, tensor.shape).text);
  }
  return TILEWISE_OK;
}

Status check_rank(const char* name, const tilewise_tensor& tensor, int rank, const char* letters) {
  if (tensor.rank == rank) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT, "%s: rank is %d, must be %d: %s", name, tensor.rank, rank,
              letters);
}

Status check_shape(const char* name, const tilewise_tensor& tensor, int rank,
                   const std::int64_t* expected, const char* letters) {
  TILEWISE_RETURN_IF_ERROR(check_rank(name, tensor, rank, letters));
  if (std::memcmp(tensor.shape, expected, static_cast<std::size_t>(rank) * sizeof(std::int64_t)) ==
      0)
    return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT, "%s: shape is %s, must be %s = %s", name,
              shape_text(tensor.rank, tensor.shape).text, letters, shape_text(rank, expected).text);
}

Status check_dtype(const char* name, const tilewise_tensor& tensor, std::int32_t first,
                   std::int32_t second) {
  if (tensor.dtype == first || tensor.dtype == second) return TILEWISE_OK;
  if (first == second) {
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: dtype is %s, must be %s", name,
                dtype_name(tensor.dtype), dtype_name(first));
  }
  return fail(TILEWISE_INVALID_ARGUMENT, "%s: dtype is %s, must be %s or %s", name,
              dtype_name(tensor.dtype), dtype_name(first), dtype_name(second));
}

std::int64_t stride_of(const tilewise_tensor& tensor, int dimension) {
  return tensor.shape[dimension] > 1 ? tensor.strides[dimension] : 0;
}

Status check_innermost(const char* name, const tilewise_tensor& tensor) {
  const int last = tensor.rank - 1;
  if (tensor.shape[last] <= 1 || tensor.strides[last] == 1) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT, "%s: innermost stride is %lld, must be 1", name,
              printable(tensor.strides[last]));
}

Status check_device(const char* name, const tilewise_tensor& tensor, const tilewise_tensor& q) {
  if (!present(tensor) || !present(q)) return TILEWISE_OK;
  if (tensor.device == q.device && tensor.device_index == q.device_index) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT, "%s: device is %s, must be that of q: %s", name,
              device_text(tensor.device, tensor.device_index).text,
              device_text(q.device, q.device_index).text);
}

DeviceText device_text(std::int32_t device, std::int32_t index) {
  DeviceText result = {"cpu"};
  if (device == TILEWISE_CUDA) {
    std::snprintf(result.text, sizeof(result.text), "cuda:%d", index);
  }
  return result;
}

const char* dtype_name(std::int32_t dtype) {
  switch (dtype) {
    case TILEWISE_FP64:
      return "fp64";
    case TILEWISE_FP32:
      return "fp32";
    case TILEWISE_BF16:
      return "bf16";
    case TILEWISE_FP16:
      return "fp16";
    case TILEWISE_INT32:
      return "int32";
    case TILEWISE_INT64:
      return "int64";
    case TILEWISE_BOOL:
      return "bool";
    case TILEWISE_E4M3:
      return "e4m3";
    case TILEWISE_E5M2:
      return "e5m2";
    default:
      return "invalid dtype";
  }
}

}  // namespace tilewise::problem
