// Quantisation on a device. A block of threads takes 128 rows of the heads that share a scale, a
// warp a row at a time. Scales of blocks are measured and used by the same block of threads, whose
// rows are then in its caches; those of heads or of the tensor take a pass of their own.
#include "cuda/fp8/quantise.h"

#include "cuda/fp8/quantise_row.cuh"
#include "cuda/host/device.h"
#include "cuda/host/launch.cuh"

namespace tilewise::cuda {
namespace fp8 {
namespace {

using problem::kDescaleRows;
using problem::Shared;

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;

struct Launch {
  Quantisation task;
  std::int64_t batches;  // of the views
  std::int64_t blocks;   // of kDescaleRows rows
  std::int64_t items;
  bool aligned;  // all rows, to 16 bytes
};

struct Item {
  std::int64_t batch;
  std::int64_t kv_head;
  std::int64_t block;
};

struct SharedState {
  std::uint32_t signs[kMostRotated / 32 + 2];  // lanes after a block's end read a word more
  std::uint32_t largest[kWarps];
};

// The sequence of a row, or -1. Whatever the list holds, it is one of the task.
__device__ __forceinline__ std::int64_t sequence_of(const Quantisation& task, std::int64_t batch,
                                                    std::int64_t row) {
  if (!task.cu_seqlens.present()) return batch;
  std::int64_t begin = 0;  // of the starts that may be after the row
  std::int64_t end = task.cu_seqlens.count;
  while (begin < end) {
    const std::int64_t middle = (begin + end) / 2;
    if (task.cu_seqlens.at(middle) <= row) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin == task.cu_seqlens.count ? -1 : begin - 1;
}

template <class S>
class Quantiser {
 public:
  __device__ Quantiser(const Launch& launch, SharedState& shared)
      : launch_(launch), task_(launch.task), shared_(shared) {
    if (!task_.incoherent) return;
    for (int group = static_cast<int>(threadIdx.x); 128 * group < task_.width; group += kThreads) {
      const math::Philox4 words = math::column_signs(group, task_.seed);
      for (int i = 0; i < 4; ++i) shared_.signs[4 * group + i] = words.word[i];
    }
    __syncthreads();
  }

  // Calls function(item) for the items of the block of threads.
  template <class Function>
  __device__ __forceinline__ void for_each_item(const Function& function) const {
    for (std::int64_t index = blockIdx.x; index < launch_.items; index += gridDim.x) {
      const std::int64_t of_heads = index / task_.kv_heads;
      function(Item{of_heads / launch_.blocks, index % task_.kv_heads, of_heads % launch_.blocks});
    }
  }

  // Calls end(sequence, largest) with the largest magnitude of the warp's rows of each sequence.
  template <class End>
  __device__ __forceinline__ void measure(const Item& item, const End& end) const {
    std::int64_t sequence = -1;
    std::uint32_t largest = 0;
    const auto end_sequence = [&] {
      const auto all =
          static_cast<std::uint32_t>(__reduce_max_sync(~0u, static_cast<int>(largest)));
      if (sequence >= 0 && Part::lane() == 0) end(sequence, all);
    };
    for_each_row(item, [&](std::int64_t of, std::int64_t head, std::int64_t row) {
      if (of != sequence) {
        end_sequence();
        sequence = of;
        largest = 0;
      }
      if (of < 0) return;
      for_each_part(task_, [&]<int kCount>(const Part& part) {
        float x[kCount];
        load<kCount>(item, head, row, part, x);
        largest = largest_of(x, largest);
      });
    });
    end_sequence();
  }

  // The scale of a block of rows, for all threads.
  __device__ __forceinline__ float block_scale(const Item& item) {
    const unsigned warp = threadIdx.x / 32;
    if (Part::lane() == 0) shared_.largest[warp] = 0;
    measure(item, [&](std::int64_t, std::uint32_t largest) { shared_.largest[warp] = largest; });
    __syncthreads();
    std::uint32_t largest = 0;
    for (const std::uint32_t of_warp : shared_.largest) largest = math::max(largest, of_warp);
    __syncthreads();
    const float scale = task_.scale_of(largest);
    if (threadIdx.x == 0) *scale_at(item.batch, item) = scale;
    return scale;
  }

  __device__ __forceinline__ void write(const Item& item) {
    const bool computes = task_.computes_scales() && task_.shared == Shared::kBlock;
    const float computed = computes ? block_scale(item) : 1.0f;
    std::int32_t saturated = 0;
    for_each_row(item, [&](std::int64_t sequence, std::int64_t head, std::int64_t row) {
      const bool has_scale = task_.shared != Shared::kNothing && sequence >= 0;
      const float scale = has_scale && !computes ? *scale_at(sequence, item) : computed;
      for_each_part(task_, [&]<int kCount>(const Part& part) {
        float x[kCount] = {};
        if (sequence >= 0) load<kCount>(item, head, row, part, x);
        store(item, head, row, part, 1.0f / scale, x, saturated);
      });
    });
    if (task_.saturated == nullptr) return;
    for (int step = 16; step > 0; step /= 2) saturated += __shfl_xor_sync(~0u, saturated, step);
    if (Part::lane() == 0 && saturated != 0)
      atomicAdd(reinterpret_cast<unsigned long long*>(task_.saturated),
                static_cast<unsigned long long>(saturated));
  }

  __device__ __forceinline__ float* scale_at(std::int64_t sequence, const Item& item) const {
    return static_cast<float*>(task_.descale.data) +
           task_.descale.offset(sequence, item.kv_head, item.block);
  }

 private:
  // Calls visit(sequence or -1, head, row) for the warp's rows of an item.
  template <class Visit>
  __device__ __forceinline__ void for_each_row(const Item& item, const Visit& visit) const {
    const std::int64_t first = item.block * kDescaleRows;
    const std::int64_t count = math::min(task_.rows - first, kDescaleRows);
    const std::int64_t group = task_.group();
    for (std::int64_t i = threadIdx.x / 32; i < count * group; i += kWarps) {
      const std::int64_t row = first + i / group;
      visit(sequence_of(task_, item.batch, row), item.kv_head * group + i % group, row);
    }
  }

  template <int kCount>
  __device__ __forceinline__ void load(const Item& item, std::int64_t head, std::int64_t row,
                                       const Part& part, float (&x)[kCount]) const {
    load_numbers(
        static_cast<const S*>(task_.input.data) + task_.input.offset(item.batch, head, row), part,
        launch_.aligned, x);
    if (task_.incoherent) rotate(shared_.signs, part, x);
  }

  template <int kCount>
  __device__ __forceinline__ void store(const Item& item, std::int64_t head, std::int64_t row,
                                        const Part& part, float inverse, const float (&x)[kCount],
                                        std::int32_t& saturated) const {
    const std::int64_t offset = task_.output.offset(item.batch, head, row);
    void* const to = static_cast<std::uint8_t*>(task_.output.data) +
                     offset * problem::dtype_size(task_.output.dtype);
    switch (task_.output.dtype) {
      case TILEWISE_E4M3:
        return store_codes<math::Float8E4M3>(x, inverse, static_cast<std::uint8_t*>(to), part,
                                             launch_.aligned, saturated);
      case TILEWISE_E5M2:
        return store_codes<math::Float8E5M2>(x, inverse, static_cast<std::uint8_t*>(to), part,
                                             launch_.aligned, saturated);
      case TILEWISE_FP32:
        return store_wide<float>(x, to, part);
      case TILEWISE_BF16:
        return store_wide<math::BFloat16>(x, to, part);
      default:
        return store_wide<math::Float16>(x, to, part);
    }
  }

  const Launch& launch_;
  const Quantisation& task_;
  SharedState& shared_;
};

// Writes the largest magnitudes of heads or of the tensor in the place of their scales.
template <class S>
__global__ void __launch_bounds__(kThreads) measure_kernel(const __grid_constant__ Launch launch) {
  __shared__ SharedState shared;
  const Quantiser<S> quantiser(launch, shared);
  quantiser.for_each_item([&](const Item& item) {
    quantiser.measure(item, [&](std::int64_t sequence, std::uint32_t largest) {
      atomicMax(reinterpret_cast<unsigned*>(quantiser.scale_at(sequence, item)), largest);
    });
  });
}

template <class S>
__global__ void __launch_bounds__(kThreads) write_kernel(const __grid_constant__ Launch launch) {
  __shared__ SharedState shared;
  Quantiser<S> quantiser(launch, shared);
  quantiser.for_each_item([&](const Item& item) { quantiser.write(item); });
}

// Sets the scales of the tensor or of heads to zero before they are measured, and then turns the
// measured magnitudes into scales.
__global__ void __launch_bounds__(kThreads)
    scale_kernel(const __grid_constant__ Launch launch, bool measured) {
  const Quantisation& task = launch.task;
  const bool of_heads = task.shared == Shared::kHead;
  const std::int64_t count = of_heads ? task.sequences * task.kv_heads : 1;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t offset =
        of_heads ? task.descale.offset(i / task.kv_heads, i % task.kv_heads, 0) : 0;
    float* const scale = static_cast<float*>(task.descale.data) + offset;
    *scale = measured ? task.scale_of(__float_as_uint(*scale)) : 0.0f;
  }
}

bool is_aligned(const problem::View& view) {
  constexpr std::int64_t kAlignment = 16;
  const std::int64_t size = problem::dtype_size(view.dtype);
  for (const std::int64_t stride : {view.batch, view.head, view.row}) {
    if (stride * size % kAlignment != 0) return false;
  }
  return reinterpret_cast<std::uintptr_t>(view.data) % kAlignment == 0;
}

Launch launch_of(const Quantisation& task) {
  const std::int64_t batches = task.cu_seqlens.present() ? 1 : task.sequences;
  const std::int64_t blocks = math::ceil_div(task.rows, kDescaleRows);
  return {task, batches, blocks, batches * blocks * task.kv_heads,
          is_aligned(task.input) && is_aligned(task.output)};
}

template <class S>
cudaError_t start(const Launch& launch, cudaStream_t stream) {
  constexpr std::int64_t kMaxBlocks = 1 << 16;
  const Quantisation& task = launch.task;
  const Grid grid = {math::min(launch.items, kMaxBlocks), kThreads};
  const bool measures = task.computes_scales() && task.shared != Shared::kBlock;
  const std::int64_t scales = task.shared == Shared::kHead ? task.sequences * task.kv_heads : 1;
  const Grid of_scales = {math::min(math::ceil_div(scales, kThreads), kMaxBlocks), kThreads};
  cudaError_t error = cudaSuccess;
  if (measures && scales > 0) {
    error = cuda::launch(scale_kernel, of_scales, stream, launch, false);
    if (error == cudaSuccess && launch.items > 0)
      error = cuda::launch(measure_kernel<S>, grid, stream, launch);
    if (error == cudaSuccess) error = cuda::launch(scale_kernel, of_scales, stream, launch, true);
  }
  if (error != cudaSuccess || launch.items == 0) return error;
  return cuda::launch(write_kernel<S>, grid, stream, launch);
}

}  // namespace
}  // namespace fp8

problem::Status quantise(const problem::Quantisation& task, void* stream) {
  constexpr std::int32_t kLeastMajor = 9;  // conversions to fp8 are instructions since 8.9
  DeviceInfo device;
  const problem::Status found = find_device(task.device_index, &device);
  if (found != TILEWISE_OK) return found;
  if (device.major < kLeastMajor) {
    return problem::fail(TILEWISE_UNSUPPORTED, "input: %s has compute capability %d.%d, needs 9.0",
                         device.name, device.major, device.minor);
  }
  if (task.incoherent && task.width > fp8::kMostRotated) {
    return problem::fail(TILEWISE_UNSUPPORTED, "input: D is %lld, must be at most %d to be rotated",
                         static_cast<long long>(task.width), fp8::kMostRotated);
  }
  const CurrentDevice current(task.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  const fp8::Launch launch = fp8::launch_of(task);
  const auto start = task.input.dtype == TILEWISE_FP32   ? fp8::start<float>
                     : task.input.dtype == TILEWISE_BF16 ? fp8::start<math::BFloat16>
                                                         : fp8::start<math::Float16>;
  return check(start(launch, stream_of(stream)), "starting the kernels of quantise");
}

}  // namespace tilewise::cuda
