#include "tensor.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "../core/expected_dtype.h"

namespace tilewise::torch_binding {
namespace {

struct DtypePair {
  std::int32_t ours;
  std::int32_t theirs;
};

const std::array<DtypePair, 9>& dtypes() {
  static const std::array<DtypePair, 9> pairs = {{
      {TILEWISE_FP64, torch().aoti_torch_dtype_float64()},
      {TILEWISE_FP32, torch().aoti_torch_dtype_float32()},
      {TILEWISE_BF16, torch().aoti_torch_dtype_bfloat16()},
      {TILEWISE_FP16, torch().aoti_torch_dtype_float16()},
      {TILEWISE_E4M3, torch().aoti_torch_dtype_float8_e4m3fn()},
      {TILEWISE_E5M2, torch().aoti_torch_dtype_float8_e5m2()},
      {TILEWISE_INT32, torch().aoti_torch_dtype_int32()},
      {TILEWISE_INT64, torch().aoti_torch_dtype_int64()},
      {TILEWISE_BOOL, torch().aoti_torch_dtype_bool()},
  }};
  return pairs;
}

std::int32_t tilewise_dtype(const char* name, Tensor tensor) {
  std::int32_t theirs = 0;
  check(torch().aoti_torch_get_dtype(tensor, &theirs), "tensor without a dtype");
  for (const DtypePair& pair : dtypes()) {
    if (pair.theirs == theirs) return pair.ours;
  }
  if (theirs == torch().aoti_torch_dtype_uint8() && python::takes_bytes(name)) return TILEWISE_BOOL;
  raise(
      (std::string(name) + ": this dtype is not supported, must be " + python::expected_dtype(name))
          .c_str());
}

std::int32_t tilewise_device(const char* name, Tensor tensor) {
  std::int32_t kind = 0;
  check(torch().aoti_torch_get_device_type(tensor, &kind), "tensor without a device");
  if (kind == torch().aoti_torch_device_type_cpu()) return TILEWISE_CPU;
  if (kind == torch().aoti_torch_device_type_cuda()) return TILEWISE_CUDA;
  raise((std::string(name) + ": is on a device that is neither the CPU nor a CUDA device").c_str());
}

}  // namespace

std::int32_t torch_dtype(std::int32_t dtype) {
  for (const DtypePair& pair : dtypes()) {
    if (pair.ours == dtype) return pair.theirs;
  }
  raise("a dtype that PyTorch has no name for");
}

tilewise_tensor view(const char* name, const Owned& tensor) {
  tilewise_tensor result = {};
  if (!tensor) return result;
  std::int64_t rank = 0;
  std::int64_t* shape = nullptr;
  std::int64_t* strides = nullptr;
  check(torch().aoti_torch_get_dim(tensor.get(), &rank), "tensor without a rank");
  if (rank < 1 || rank > TILEWISE_MAX_RANK) {
    raise((std::string(name) + ": has " + std::to_string(rank) + " dimensions, must have 1 to 4")
              .c_str());
  }
  check(torch().aoti_torch_get_sizes(tensor.get(), &shape), "tensor without sizes");
  check(torch().aoti_torch_get_strides(tensor.get(), &strides), "tensor without strides");
  check(torch().aoti_torch_get_data_ptr(tensor.get(), &result.data), "tensor without data");
  result.dtype = tilewise_dtype(name, tensor.get());
  result.rank = static_cast<std::int32_t>(rank);
  result.device = tilewise_device(name, tensor.get());
  if (result.device == TILEWISE_CUDA) {
    check(torch().aoti_torch_get_device_index(tensor.get(), &result.device_index),
          "tensor without a device index");
  }
  std::copy_n(shape, rank, result.shape);
  std::copy_n(strides, rank, result.strides);
  return result;
}

Owned allocate(std::int32_t rank, const std::int64_t* shape, const std::int64_t* strides,
               std::int32_t torch_dtype, const tilewise_tensor& like) {
  const bool cuda = like.device == TILEWISE_CUDA;
  Tensor created = nullptr;
  check(torch().aoti_torch_empty_strided(
            rank, shape, strides, torch_dtype,
            cuda ? torch().aoti_torch_device_type_cuda() : torch().aoti_torch_device_type_cpu(),
            cuda ? like.device_index : -1, &created),
        "no memory for a result");
  return Owned(created);
}

Owned allocate_like(const tilewise_tensor& like, std::int64_t last, std::int32_t torch_dtype) {
  std::array<std::int64_t, TILEWISE_MAX_RANK> shape = {};
  std::array<std::int64_t, TILEWISE_MAX_RANK> strides = {};
  std::array<std::int32_t, TILEWISE_MAX_RANK> order = {};  // outermost first, without the last
  const std::int32_t leading = like.rank - 1;
  std::copy_n(like.shape, leading, shape.begin());
  shape[static_cast<std::size_t>(leading)] = last;
  std::iota(order.begin(), order.begin() + leading, 0);
  std::stable_sort(order.begin(), order.begin() + leading, [&](std::int32_t a, std::int32_t b) {
    return like.strides[a] > like.strides[b];
  });
  strides[static_cast<std::size_t>(leading)] = 1;
  std::int64_t stride = std::max<std::int64_t>(last, 1);
  for (std::int32_t i = leading - 1; i >= 0; --i) {
    const auto dimension = static_cast<std::size_t>(order[static_cast<std::size_t>(i)]);
    strides[dimension] = stride;
    stride *= std::max<std::int64_t>(shape[dimension], 1);
  }
  return allocate(like.rank, shape.data(), strides.data(), torch_dtype, like);
}

Owned with_dense_rows(const char* name, Owned tensor) {
  const tilewise_tensor seen = view(name, tensor);
  if (seen.rank == 0 || seen.shape[seen.rank - 1] <= 1 || seen.strides[seen.rank - 1] == 1) {
    return tensor;
  }
  Owned copy = allocate_like(seen, seen.shape[seen.rank - 1], torch_dtype(seen.dtype));
  check(torch().aoti_torch_copy_(copy.get(), tensor.get(), 0), "a tensor cannot be copied");
  return copy;
}

}  // namespace tilewise::torch_binding
