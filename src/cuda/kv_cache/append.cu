// New keys and values, rotated, into a cache, and rotated queries, in one kernel: a warp takes a
// row at a time (problem/append_row.h).
#include "cuda/kv_cache/append.h"

#include "cuda/host/device.h"
#include "cuda/host/launch.cuh"
#include "math/integer.h"
#include "problem/append_row.h"

namespace tilewise::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRowsPerBlock = kThreads / 32;

// Four blocks: left to itself, ptxas takes few registers for bf16 on 8.0, and spills.
template <class Element>
__global__ void __launch_bounds__(kThreads, 4)
    append_kernel(const __grid_constant__ problem::Append task) {
  const std::int64_t step = std::int64_t{gridDim.x} * kRowsPerBlock;
  for (std::int64_t index = std::int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / 32;
       index < task.rows(); index += step)
    problem::append_row<Element>(task, index, static_cast<int>(threadIdx.x) % 32, 32);
}

}  // namespace

problem::Status append(const problem::Append& task, void* stream) {
  constexpr std::int64_t kMaxBlocks = 1 << 16;
  const CurrentDevice current(task.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  const auto kernel = task.dtype == TILEWISE_FP32   ? append_kernel<float>
                      : task.dtype == TILEWISE_BF16 ? append_kernel<math::BFloat16>
                                                    : append_kernel<math::Float16>;
  const Grid grid = {math::min(math::ceil_div(task.rows(), kRowsPerBlock), kMaxBlocks), kThreads};
  return check(launch(kernel, grid, stream_of(stream), task), "starting the append kernel");
}

}  // namespace tilewise::cuda
