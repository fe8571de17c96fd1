#include "cuda/host/tensor_map.h"

#include "cuda/host/device.h"
#include "cuda/tile/swizzle.h"

namespace tilewise::cuda::sm90 {
namespace {

using problem::fail;

constexpr std::int64_t kAlignment = 16;  // bytes, of the address and of strides
constexpr std::int64_t kMaxStride = std::int64_t{1} << 40;
constexpr std::int64_t kMaxSize = (std::int64_t{1} << 31) - 1;

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

struct Encoder {
  Encode function = nullptr;
  Encoder() {
    constexpr unsigned kVersion = 12000;
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &found, kVersion, cudaEnableDefault, &result);
    if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
    if (error == cudaSuccess && result == cudaDriverEntryPointSuccess)
      function = reinterpret_cast<Encode>(found);
  }
};

const Encoder& encoder() {
  static const Encoder found;
  return found;
}

long long printable(std::int64_t x) { return static_cast<long long>(x); }

std::int64_t element_bytes(const Rows& tensor) { return problem::dtype_size(tensor.view.dtype); }

CUtensorMapDataType type_of(const Rows& tensor) {
  if (problem::is_fp8(tensor.view.dtype)) return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  return tensor.view.dtype == TILEWISE_FP16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                            : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

// Whether the stride of a dimension with a size above 1 fits a tensor map of such elements.
bool is_valid_stride(std::int64_t stride, bool is_row, std::int64_t bytes) {
  return stride >= (is_row ? 1 : 0) && stride * bytes % kAlignment == 0 &&
         stride < kMaxStride / bytes;
}

}  // namespace

problem::Status check_hopper(std::int32_t device_index) {
  DeviceInfo device;
  const problem::Status found = find_device(device_index, &device);
  if (found != TILEWISE_OK) return found;
  if (device.major != 9 || device.minor != 0) {
    return fail(TILEWISE_UNSUPPORTED, "%s has compute capability %d.%d, this kernel is for 9.0",
                device.name, device.major, device.minor);
  }
  if (encoder().function != nullptr) return TILEWISE_OK;
  return fail(TILEWISE_UNSUPPORTED, "cuda: the driver has no cuTensorMapEncodeTiled");
}

problem::Status check_map(const Rows& tensor) {
  const struct {
    const char* dimension;
    std::int64_t size;
    std::int64_t stride;
  } dimensions[] = {{"row", tensor.rows, tensor.view.row},
                    {"head", tensor.heads, tensor.view.head},
                    {"batch", tensor.batch, tensor.view.batch}};
  const std::int64_t bytes = element_bytes(tensor);
  for (const auto& [dimension, size, stride] : dimensions) {
    if (size > kMaxSize) {
      return fail(TILEWISE_UNSUPPORTED, "%s: %lld %ss, TMA takes %lld", tensor.name,
                  printable(size), dimension, printable(kMaxSize));
    }
    if (size > 1 && !is_valid_stride(stride, dimension == dimensions[0].dimension, bytes)) {
      return fail(TILEWISE_UNSUPPORTED,
                  "%s: %s stride is %lld elements, TMA needs a multiple of %lld", tensor.name,
                  dimension, printable(stride), printable(kAlignment / bytes));
    }
  }
  return TILEWISE_OK;
}

problem::Status check_maps(std::initializer_list<Rows> tensors) {
  for (const Rows& tensor : tensors) {
    const problem::Status status = check_map(tensor);
    if (status != TILEWISE_OK) return status;
  }
  return TILEWISE_OK;
}

Rows q_side(const char* name, const problem::View& view, const problem::Problem& problem,
            std::int64_t columns) {
  return {name, view, problem.q_packed ? 1 : problem.batch, problem.heads, problem.q_rows, columns};
}
Rows k_side(const char* name, const problem::View& view, const problem::Problem& problem,
            std::int64_t columns) {
  return {name,           view,   problem.k_packed ? 1 : problem.batch, problem.kv_heads,
          problem.k_rows, columns};
}

bool has_map(const Rows& tensor) {
  const std::int64_t bytes = element_bytes(tensor);
  const auto takes = [bytes](std::int64_t size, std::int64_t stride, bool is_row) {
    return size <= kMaxSize && (size <= 1 || is_valid_stride(stride, is_row, bytes));
  };
  return takes(tensor.rows, tensor.view.row, true) &&
         takes(tensor.heads, tensor.view.head, false) &&
         takes(tensor.batch, tensor.view.batch, false);
}

problem::Status make_map(const Rows& tensor, int tile_rows, TensorMap* map) {
  if (reinterpret_cast<std::uintptr_t>(tensor.view.data) % kAlignment != 0) {
    return fail(TILEWISE_INVALID_ARGUMENT, "%s: address is %p, cuda_sm90 needs a multiple of %lld",
                tensor.name, tensor.view.data, printable(kAlignment));
  }
  const auto size_in_map = [](std::int64_t size, std::int64_t stride) {
    return static_cast<cuuint64_t>(stride > 0 && size > 0 ? size : 1);
  };
  const std::int64_t element = element_bytes(tensor);
  const auto bytes = [element](std::int64_t stride) {
    return static_cast<cuuint64_t>(stride > 0 ? stride * element : kAlignment);
  };
  const problem::View& view = tensor.view;
  const cuuint64_t sizes[] = {
      static_cast<cuuint64_t>(tensor.columns), size_in_map(tensor.rows, view.row),
      size_in_map(tensor.heads, view.head), size_in_map(tensor.batch, view.batch)};
  const cuuint64_t strides[] = {bytes(view.row), bytes(view.head), bytes(view.batch)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(tile::kPanelRowBytes / element),
                            static_cast<cuuint32_t>(tile_rows), 1, 1};
  const cuuint32_t element_strides[] = {1, 1, 1, 1};
  map->coords = {sizes[2] > 1 ? 1 : 0, sizes[3] > 1 ? 1 : 0};
  const CUresult result =
      encoder().function(&map->map, type_of(tensor), 4, view.data, sizes, strides, box,
                         element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return TILEWISE_OK;
  return fail(TILEWISE_DEVICE_ERROR, "%s: the driver refuses a tensor map (error %d)", tensor.name,
              static_cast<int>(result));
}

}  // namespace tilewise::cuda::sm90
