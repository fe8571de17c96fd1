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

namespace {

// An upper bound on the tiles of one side of a problem. A packed sequence may end within a tile.
Checked most_tiles(std::int64_t rows, std::int64_t tile, bool packed, std::int64_t batch,
                   std::int64_t heads) {
  const Checked of_rows{math::ceil_div(rows, tile)};
  return (packed ? of_rows + Checked{batch} : of_rows * Checked{batch}) * Checked{heads};
}

// Returns how many of `rows` rows a row of the other side sees: all, or a window of them.
std::int64_t seen_rows(const Problem& problem, std::int64_t rows) {
  if (problem.window_left < 0) return rows;
  return math::min(
      rows, math::min(rows, problem.window_left) + math::min(rows, problem.window_right) + 1);
}

// Adds head swizzle to a schedule: of `swizzle` heads.
tile::Schedule with_head_swizzle(tile::Schedule schedule, std::int64_t swizzle) {
  const std::int64_t heads = std::int64_t{schedule.heads} * schedule.batch;
  schedule.swizzle = static_cast<std::int32_t>(math::min(swizzle, heads));
  if (heads > 0)
    schedule.swizzle_groups = static_cast<std::int32_t>(math::ceil_div(heads, schedule.swizzle));
  return schedule;
}

// The number of heads that share `bytes` of L2 if each accesses `head_bytes`; at least 1.
std::int64_t heads_in_l2(std::int64_t bytes, std::int64_t head_bytes) {
  return math::max(bytes / math::max(head_bytes, 1), 1);
}

// The number of heads whose tiles fill the device, with one block on a multiprocessor.
std::int64_t heads_that_fill(std::int32_t device_index, std::int64_t tiles) {
  DeviceInfo device;
  if (find_device(device_index, &device) != TILEWISE_OK) return 1;
  return math::ceil_div(std::int64_t{device.multiprocessors}, math::max(tiles, 1));
}

tile::Schedule plain_schedule(std::int64_t rows, int tile, std::int64_t heads, std::int64_t batch) {
  return {static_cast<std::int32_t>(math::ceil_div(rows, tile)), static_cast<std::int32_t>(heads),
          static_cast<std::int32_t>(batch), 0, 0};
}

}  // namespace

Checked max_tiles(const Problem& problem, std::int64_t q_tile) {
  return most_tiles(problem.q_rows, q_tile, problem.q_packed, problem.batch, problem.heads);
}

Checked max_key_tiles(const Problem& problem, std::int64_t k_tile) {
  return most_tiles(problem.k_rows, k_tile, problem.k_packed, problem.batch, problem.kv_heads);
}

tile::Schedule schedule_of(const Problem& problem, int q_tile, bool longest_first) {
  const tile::Schedule schedule =
      plain_schedule(problem.q_rows, q_tile, problem.heads, problem.batch);
  if (!longest_first) return schedule;
  constexpr std::int64_t kSwizzleBytes = std::int64_t{32} << 20;  // of the H200's 50 MB
  const std::int64_t row_bytes =
      (problem.head_dim + problem.value_dim) * problem::dtype_size(problem.dtype);
  const std::int64_t head_bytes = seen_rows(problem, problem.k_rows) * row_bytes;
  return with_head_swizzle(schedule,
                           heads_in_l2(kSwizzleBytes, head_bytes) * math::max(problem.group, 1));
}

tile::Schedule key_schedule_of(const Problem& problem, int k_tile, bool longest_first, bool turns) {
  const tile::Schedule schedule =
      plain_schedule(problem.k_rows, k_tile, problem.kv_heads, problem.batch);
  if (!longest_first && !turns) return schedule;
  // Q and dO are read, and the fp32 sums of dQ are added to: D 128, S 1024 causal: 279 TFLOP/s,
  // where 32 MB of Q and dO alone shared L2 237.
  constexpr std::int64_t kSwizzleBytes = std::int64_t{20} << 20;
  const std::int64_t row_bytes =
      (problem.head_dim + problem.value_dim) * problem::dtype_size(problem.dtype) +
      problem.head_dim * std::int64_t{sizeof(float)};
  const std::int64_t rows = seen_rows(problem, problem.q_rows) * math::max(problem.group, 1);
  std::int64_t heads = heads_in_l2(kSwizzleBytes, rows * row_bytes);
  if (!longest_first)
    heads = math::max(heads, heads_that_fill(problem.device_index, schedule.q_tiles));
  return with_head_swizzle(schedule, heads);
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

Status check_no_pages(const Problem& problem) {
  if (!problem.page_table.present()) return TILEWISE_OK;
  return problem::fail(TILEWISE_UNSUPPORTED, "page_table: k and v are pages");
}

}  // namespace tilewise::cuda
