// The part of PyTorch's stable C interface that the operators need, found at run time in the
// PyTorch that the process has loaded. So the library is built without PyTorch, and one binary
// works with every PyTorch since 2.10. python/tests/torch/shim_check.cc compares these types with
// PyTorch's headers.
#pragma once

#include <tilewise/tilewise.h>

#include <cstddef>
#include <cstdint>

// Opaque types, with the names that PyTorch's headers give them.
struct AtenTensorOpaque;
struct TorchLibraryOpaque;
struct DeviceGuardOpaque;

namespace tilewise::torch_binding {

using Tensor = AtenTensorOpaque*;
using Value = std::uint64_t;  // an argument or a result on an operator's stack
using Boxed = void (*)(Value* stack, std::uint64_t arguments, std::uint64_t results);
using Range = void (*)(std::int64_t begin, std::int64_t end, void* context);
using Error = std::int32_t;  // 0 is success

// X(name, result, parameters...)
#define TILEWISE_TORCH_FUNCTIONS(X)                                                            \
  X(aoti_torch_library_init_def, Error, const char*, const char*, std::uint32_t,               \
    TorchLibraryOpaque**)                                                                      \
  X(aoti_torch_library_init_impl, Error, const char*, const char*, const char*, std::uint32_t, \
    TorchLibraryOpaque**)                                                                      \
  X(aoti_torch_library_def, Error, TorchLibraryOpaque*, const char*)                           \
  X(torch_library_impl, Error, TorchLibraryOpaque*, const char*, Boxed, std::uint64_t)         \
  X(aoti_torch_delete_tensor_object, Error, Tensor)                                            \
  X(aoti_torch_get_data_ptr, Error, Tensor, void**)                                            \
  X(aoti_torch_get_dim, Error, Tensor, std::int64_t*)                                          \
  X(aoti_torch_get_sizes, Error, Tensor, std::int64_t**)                                       \
  X(aoti_torch_get_strides, Error, Tensor, std::int64_t**)                                     \
  X(aoti_torch_get_dtype, Error, Tensor, std::int32_t*)                                        \
  X(aoti_torch_get_device_type, Error, Tensor, std::int32_t*)                                  \
  X(aoti_torch_get_device_index, Error, Tensor, std::int32_t*)                                 \
  X(aoti_torch_empty_strided, Error, std::int64_t, const std::int64_t*, const std::int64_t*,   \
    std::int32_t, std::int32_t, std::int32_t, Tensor*)                                         \
  X(aoti_torch_copy_, Error, Tensor, Tensor, std::int32_t)                                     \
  X(aoti_torch_create_device_guard, Error, std::int32_t, DeviceGuardOpaque**)                  \
  X(aoti_torch_delete_device_guard, Error, DeviceGuardOpaque*)                                 \
  X(aoti_torch_device_type_cpu, std::int32_t)                                                  \
  X(aoti_torch_device_type_cuda, std::int32_t)                                                 \
  X(aoti_torch_dtype_float64, std::int32_t)                                                    \
  X(aoti_torch_dtype_float32, std::int32_t)                                                    \
  X(aoti_torch_dtype_bfloat16, std::int32_t)                                                   \
  X(aoti_torch_dtype_float16, std::int32_t)                                                    \
  X(aoti_torch_dtype_float8_e4m3fn, std::int32_t)                                              \
  X(aoti_torch_dtype_float8_e5m2, std::int32_t)                                                \
  X(aoti_torch_dtype_int32, std::int32_t)                                                      \
  X(aoti_torch_dtype_int64, std::int32_t)                                                      \
  X(aoti_torch_dtype_bool, std::int32_t)                                                       \
  X(aoti_torch_dtype_uint8, std::int32_t)                                                      \
  X(torch_parallel_for, Error, std::int64_t, std::int64_t, std::int64_t, Range, void*)         \
  X(torch_get_num_threads, Error, std::uint32_t*)

// PyTorch's functions; each pointer is set once load() has succeeded.
struct Torch {
#define TILEWISE_TORCH_MEMBER(name, result, ...) result (*name)(__VA_ARGS__) = nullptr;
  TILEWISE_TORCH_FUNCTIONS(TILEWISE_TORCH_MEMBER)
#undef TILEWISE_TORCH_MEMBER
  // This function is in PyTorch's CUDA library, which only builds with CUDA have; else it is
  // nullptr.
  Error (*aoti_torch_get_current_cuda_stream)(std::int32_t device, void** stream) = nullptr;
};

const Torch& torch();

// Finds the functions. Returns "" or one line that says what is missing.
const char* load();

// Throws std::runtime_error, which PyTorch turns into RuntimeError.
[[noreturn]] void raise(const char* message);

inline void check(Error error, const char* what) {
  if (error != 0) raise(what);
}

}  // namespace tilewise::torch_binding
