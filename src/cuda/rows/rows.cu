// The rows of tensors in device memory (rows.h). A warp takes a row at a time, and where rows of
// all tensors allow it a lane takes 16 bytes or four numbers at a time.
#include "cuda/rows/rows.h"

#include <type_traits>

#include "cuda/host/device.h"
#include "cuda/host/launch.cuh"
#include "cuda/host/load.h"
#include "math/integer.h"
#include "math/number.h"

namespace tilewise::cuda {
namespace {

using problem::View;

constexpr int kThreads = 256;
constexpr int kRowsPerBlock = kThreads / 32;

// Calls function(batch, head, row) for the rows of a warp.
template <class Function>
__device__ __forceinline__ void for_each_row(const RowExtents& extents, const Function& function) {
  const std::int64_t count = extents.batch * extents.heads * extents.rows;
  const std::int64_t step = std::int64_t{gridDim.x} * kRowsPerBlock;
  for (std::int64_t index = std::int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / 32;
       index < count; index += step) {
    const std::int64_t token = index / extents.heads;
    const std::int64_t batch = token / extents.rows;
    function(batch, index - token * extents.heads, token - batch * extents.rows);
  }
}

template <class T>
__device__ __forceinline__ T* at(const View& view, std::int64_t offset) {
  return static_cast<T*>(view.data) + offset;
}

template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    fill_kernel(const __grid_constant__ View view, const __grid_constant__ RowExtents extents,
                double value) {
  for_each_row(extents, [&](std::int64_t b, std::int64_t h, std::int64_t r) {
    T* const row = at<T>(view, view.offset(b, h, r));
    for (std::int64_t c = threadIdx.x % 32; c < extents.width; c += 32)
      row[c] = static_cast<T>(value);
  });
}

// Copies rows of Elements, which may be the bytes of any dtype: the strides count Elements.
template <class Element>
__global__ void __launch_bounds__(kThreads, 4)
    move_kernel(const __grid_constant__ View from, const __grid_constant__ View to,
                const __grid_constant__ RowExtents extents) {
  for_each_row(extents, [&](std::int64_t b, std::int64_t h, std::int64_t r) {
    const Element* const source = at<const Element>(from, from.offset(b, h, r));
    Element* const target = at<Element>(to, to.offset(b, h, r));
    for (std::int64_t c = threadIdx.x % 32; c < extents.width; c += 32) target[c] = source[c];
  });
}

template <class Half>
__device__ __forceinline__ uint2 round_four(const float4& x) {
  Half y[4];
  math::store(x.x, y);
  math::store(x.y, y + 1);
  math::store(x.z, y + 2);
  math::store(x.w, y + 3);
  return make_uint2(y[0].bits | static_cast<std::uint32_t>(y[1].bits) << 16,
                    y[2].bits | static_cast<std::uint32_t>(y[3].bits) << 16);
}

// Rounds rows of floats to 16 bits, four at a time: the strides count fours.
__global__ void __launch_bounds__(kThreads, 4)
    round_kernel(const __grid_constant__ View from, const __grid_constant__ View to,
                 const __grid_constant__ RowExtents extents, bool fp16) {
  for_each_row(extents, [&](std::int64_t b, std::int64_t h, std::int64_t r) {
    const float4* const source = at<const float4>(from, from.offset(b, h, r));
    uint2* const target = at<uint2>(to, to.offset(b, h, r));
    for (std::int64_t c = threadIdx.x % 32; c < extents.width; c += 32) {
      target[c] =
          fp16 ? round_four<math::Float16>(source[c]) : round_four<math::BFloat16>(source[c]);
    }
  });
}

// Rounds rows of any strides.
template <class Source, class Target>
__global__ void __launch_bounds__(kThreads, 4)
    convert_kernel(const __grid_constant__ View from, const __grid_constant__ View to,
                   const __grid_constant__ RowExtents extents) {
  for_each_row(extents, [&](std::int64_t b, std::int64_t h, std::int64_t r) {
    const Source* const source = at<const Source>(from, from.offset(b, h, r));
    Target* const target = at<Target>(to, to.offset(b, h, r));
    for (std::int64_t c = threadIdx.x % 32; c < extents.width; c += 32)
      math::store(source[c], target + c);
  });
}

__device__ __forceinline__ float sum(float a, float b) { return a + b; }
__device__ __forceinline__ double sum(double a, double b) { return a + b; }
__device__ __forceinline__ float4 sum(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

template <class Element>
__global__ void __launch_bounds__(kThreads, 4)
    sum_kernel(const __grid_constant__ View from, const __grid_constant__ View to,
               const __grid_constant__ RowExtents extents) {
  for_each_row(extents, [&](std::int64_t b, std::int64_t h, std::int64_t r) {
    const Element* const source = at<const Element>(from, from.offset(b, h, r));
    Element* const target = at<Element>(to, to.offset(b, h, r));
    for (std::int64_t c = threadIdx.x % 32; c < extents.width; c += 32)
      target[c] = sum(target[c], source[c]);
  });
}

// Whether the rows consist of groups of `count` elements, each aligned to its own size.
bool has_groups(const View& view, const RowExtents& extents, std::int64_t count) {
  const auto bytes = static_cast<std::uintptr_t>(count * problem::dtype_size(view.dtype));
  return reinterpret_cast<std::uintptr_t>(view.data) % bytes == 0 && view.batch % count == 0 &&
         view.head % count == 0 && view.row % count == 0 && extents.width % count == 0;
}

// A view whose strides count groups.
View in_groups(View view, std::int64_t count) {
  view.batch /= count;
  view.head /= count;
  view.row /= count;
  return view;
}

RowExtents in_groups(RowExtents extents, std::int64_t count) {
  extents.width /= count;
  return extents;
}

template <class... Arguments>
Status start(std::int32_t device, void (*kernel)(Arguments...), const RowExtents& extents,
             void* stream, const std::type_identity_t<Arguments>&... arguments) {
  constexpr std::int64_t kMaxBlocks = 1 << 16;
  const std::int64_t rows = extents.batch * extents.heads * extents.rows;
  if (rows == 0 || extents.width == 0) return TILEWISE_OK;
  const CurrentDevice current(device);
  if (current.status() != TILEWISE_OK) return current.status();
  const Grid grid = {math::min(math::ceil_div(rows, kRowsPerBlock), kMaxBlocks), kThreads};
  return check(launch(kernel, grid, stream_of(stream), arguments...),
               "starting a kernel that copies rows");
}

cudaError_t load_all() {
  cudaError_t error = load(fill_kernel<float>);
  if (error == cudaSuccess) error = load(fill_kernel<double>);
  if (error == cudaSuccess) error = load(move_kernel<uint4>);
  if (error == cudaSuccess) error = load(move_kernel<std::uint16_t>);
  if (error == cudaSuccess) error = load(move_kernel<std::uint32_t>);
  if (error == cudaSuccess) error = load(round_kernel);
  if (error == cudaSuccess) error = load(move_kernel<uint2>);
  if (error == cudaSuccess) error = load(convert_kernel<double, float>);
  if (error == cudaSuccess) error = load(convert_kernel<float, math::BFloat16>);
  if (error == cudaSuccess) error = load(convert_kernel<float, math::Float16>);
  if (error == cudaSuccess) error = load(sum_kernel<float>);
  if (error == cudaSuccess) error = load(sum_kernel<double>);
  return error == cudaSuccess ? load(sum_kernel<float4>) : error;
}

}  // namespace

Status load_rows(std::int32_t device) {
  const CurrentDevice current(device);
  if (current.status() != TILEWISE_OK) return current.status();
  return check(load_all(), "loading the kernels that copy rows");
}

Status fill_rows(std::int32_t device, const View& view, const RowExtents& extents, double value,
                 void* stream) {
  const auto kernel = view.dtype == TILEWISE_FP64 ? fill_kernel<double> : fill_kernel<float>;
  return start(device, kernel, extents, stream, view, extents, value);
}

namespace {

Status round_rows(std::int32_t device, const View& from, const View& to, const RowExtents& extents,
                  void* stream) {
  constexpr std::int64_t kFour = 4;
  if (from.dtype == TILEWISE_FP64)
    return start(device, convert_kernel<double, float>, extents, stream, from, to, extents);
  const bool fp16 = to.dtype == TILEWISE_FP16;
  if (has_groups(from, extents, kFour) && has_groups(to, extents, kFour)) {
    return start(device, round_kernel, extents, stream, in_groups(from, kFour),
                 in_groups(to, kFour), in_groups(extents, kFour), fp16);
  }
  const auto kernel =
      fp16 ? convert_kernel<float, math::Float16> : convert_kernel<float, math::BFloat16>;
  return start(device, kernel, extents, stream, from, to, extents);
}

}  // namespace

Status copy_rows(std::int32_t device, const View& from, const View& to, const RowExtents& extents,
                 void* stream) {
  constexpr std::int64_t kWide = 16;  // bytes
  if (from.dtype != to.dtype) return round_rows(device, from, to, extents, stream);
  const std::int64_t bytes = problem::dtype_size(to.dtype);
  const std::int64_t group = kWide / bytes;
  if (has_groups(from, extents, group) && has_groups(to, extents, group)) {
    return start(device, move_kernel<uint4>, extents, stream, in_groups(from, group),
                 in_groups(to, group), in_groups(extents, group));
  }
  const auto kernel = bytes == 2   ? move_kernel<std::uint16_t>
                      : bytes == 4 ? move_kernel<std::uint32_t>
                                   : move_kernel<uint2>;
  return start(device, kernel, extents, stream, from, to, extents);
}

Status add_rows(std::int32_t device, const View& from, const View& to, const RowExtents& extents,
                void* stream) {
  constexpr std::int64_t kFour = 4;
  if (to.dtype == TILEWISE_FP64)
    return start(device, sum_kernel<double>, extents, stream, from, to, extents);
  if (has_groups(from, extents, kFour) && has_groups(to, extents, kFour)) {
    return start(device, sum_kernel<float4>, extents, stream, in_groups(from, kFour),
                 in_groups(to, kFour), in_groups(extents, kFour));
  }
  return start(device, sum_kernel<float>, extents, stream, from, to, extents);
}

}  // namespace tilewise::cuda
