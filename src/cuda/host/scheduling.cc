#include "cuda/host/scheduling.h"

#include <initializer_list>

namespace tilewise::cuda {

using problem::Checked;
using problem::Problem;

Status check_device(const Problem& problem) {
  constexpr std::int32_t kLeastMajor = 8;
  DeviceInfo device;
  const Status found = find_device(problem.device_index, &device);
  if (found != TILEWISE_OK) return found;
  if (device.major >= kLeastMajor) return TILEWISE_OK;
  return problem::fail(TILEWISE_UNSUPPORTED, "%s has compute capability %d.%d, needs 8.0",
                       device.name, device.major, device.minor);
}

bool has_diagonal(const Problem& problem) { return problem.window_right >= 0; }

Checked max_tiles(const Problem& problem, std::int64_t q_tile) {
  const Checked of_rows{math::ceil_div(problem.q_rows, q_tile)};
  const Checked batch{problem.batch};
  return (problem.q_packed ? of_rows + batch : of_rows * batch) * Checked{problem.heads};
}

tile::Schedule schedule_of(const Problem& problem, int q_tile) {
  constexpr std::int64_t kSwizzleGroupBytes = std::int64_t{32} << 20;  // of the H200's 50 MB
  tile::Schedule schedule = {static_cast<std::int32_t>(math::ceil_div(problem.q_rows, q_tile)),
                             static_cast<std::int32_t>(problem.heads),
                             static_cast<std::int32_t>(problem.batch), 0, 0};
  if (!has_diagonal(problem)) return schedule;
  std::int64_t keys = problem.k_rows;  // that a query sees: all, or a window of them
  if (problem.window_left >= 0) {
    keys = math::min(
        keys, math::min(keys, problem.window_left) + math::min(keys, problem.window_right) + 1);
  }
  const std::int64_t head_bytes = math::max(
      keys * (problem.head_dim + problem.value_dim) * problem::dtype_size(problem.dtype), 1);
  const std::int64_t swizzle =
      math::max(kSwizzleGroupBytes / head_bytes, 1) * math::max(problem.group, 1);
  const std::int64_t heads = problem.heads * problem.batch;
  schedule.swizzle = static_cast<std::int32_t>(math::min(swizzle, heads));
  if (heads > 0)
    schedule.swizzle_groups = static_cast<std::int32_t>(math::ceil_div(heads, schedule.swizzle));
  return schedule;
}

tile::PackedSchedule packed_schedule_of(const Problem& problem, const void* tile_starts) {
  return {static_cast<const std::int32_t*>(tile_starts), static_cast<std::int32_t>(problem.heads),
          static_cast<std::int32_t>(problem.batch), has_diagonal(problem)};
}

bool is_wide(const problem::View& view, std::int64_t columns) {
  const std::int64_t elements = kAlignment / problem::dtype_size(view.dtype);
  for (const std::int64_t stride : {view.batch, view.head, view.row, columns}) {
    if (stride % elements != 0) return false;
  }
  return reinterpret_cast<std::uintptr_t>(view.data) % kAlignment == 0;
}

}  // namespace tilewise::cuda
