#include "cuda/sm80/launch.h"

#include <cstddef>
#include <cstdlib>
#include <initializer_list>

#include "cuda/device.h"
#include "cuda/sequences.cuh"
#include "cuda/sm80/parameters.h"
#include "cuda/tile/fragment.h"
#include "problem/checked.h"

namespace tilewise::cuda::sm80 {

// Rows of the table in pairs, as the files compile them.
extern const Instance kForward_bf16_64[2], kForward_fp16_64[2];
extern const Instance kForward_bf16_128[2], kForward_fp16_128[2];
extern const Instance kForward_bf16_192[2], kForward_fp16_192[2];
extern const Instance kForward_bf16_256[2], kForward_fp16_256[2];
extern const Instance kForward_bf16_general[2], kForward_fp16_general[2];

namespace {

using problem::Checked;
using problem::fail;

// Most of L2: K and V of a section of heads stay there beside what passes through.
constexpr std::int64_t kSectionBytes = std::int64_t{32} << 20;
constexpr std::int64_t kAlignment = 16;
constexpr std::int32_t kLeastMajor = 8;

std::int64_t divided(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The plain kernel multiplies inside of the exponent, which needs a positive factor.
bool is_general(const Problem& problem) {
  constexpr double kLeastScale = 1e-30;
  return problem.general_scores() || problem.dropout_p > 0 || problem.scale < kLeastScale;
}

// Shared memory that a block may use: the device's, or less, so that a large GPU runs what is made
// for small ones.
std::int64_t shared_bytes(const DeviceInfo& device) {
  static const std::int64_t most = [] {
    const char* const given = std::getenv("TILEWISE_CUDA_SHARED_BYTES");
    return given != nullptr && given[0] != '\0' ? std::strtoll(given, nullptr, 10) : INT64_MAX;
  }();
  return math::lesser(device.shared_bytes, most);
}

int row_for(const Problem& problem, bool general) {
  DeviceInfo device;
  if (find_device(problem.device_index, &device) != TILEWISE_OK) return -1;
  return tile_row(math::greater(problem.head_dim, problem.value_dim), general,
                  shared_bytes(device));
}

const Instance& instance_for(const Problem& problem, bool general) {
  static const Instance* const kRows[2][kTileRows / 2] = {
      {kForward_bf16_64, kForward_bf16_128, kForward_bf16_192, kForward_bf16_256,
       kForward_bf16_general},
      {kForward_fp16_64, kForward_fp16_128, kForward_fp16_192, kForward_fp16_256,
       kForward_fp16_general}};
  const int row = row_for(problem, general);
  return kRows[problem.dtype == TILEWISE_FP16 ? 1 : 0][row / 2][row % 2];
}

// At most so many tiles of queries: a packed sequence may end within one.
Checked most_work(const Problem& problem, std::int64_t q_tile) {
  const Checked tiles = problem.q_packed
                            ? Checked{divided(problem.q_rows, q_tile)} + Checked{problem.batch}
                            : Checked{divided(problem.q_rows, q_tile)} * Checked{problem.batch};
  return tiles * Checked{problem.heads};
}

// The parts of the workspace, one behind the other. The scale, which a plan does not know, may call
// for either kernel.
struct Workspace {
  std::int64_t table = 0;
  std::int64_t tile_starts = 0;
  std::int64_t bands = 0;
  std::int64_t marks = 0;
  std::int64_t bytes = 0;

  explicit Workspace(const Problem& problem) {
    table = take(table_bytes(problem));
    tile_starts = take(problem.q_packed ? (problem.batch + 1) * 4 : 0);
    bands = take(problem.slices.count * static_cast<std::int64_t>(sizeof(tile::Band)));
    std::int64_t most = 0;
    for (const bool general : {false, true}) {
      const std::int64_t q_tile = kTiles[row_for(problem, general)].config(false).q_tile();
      most = math::greater(most, most_work(problem, q_tile).value * (q_tile / tile::kWarpRows));
    }
    marks = take(most * 2);
  }

 private:
  std::int64_t take(std::int64_t size) {
    const std::int64_t offset = bytes;
    bytes += divided(size, kAlignment) * kAlignment;
    return offset;
  }
};

problem::Status check_device(const Problem& problem) {
  DeviceInfo device;
  const problem::Status found = find_device(problem.device_index, &device);
  if (found != TILEWISE_OK) return found;
  if (device.major < kLeastMajor) {
    return fail(TILEWISE_UNSUPPORTED, "%s has compute capability %d.%d, needs 8.0", device.name,
                device.major, device.minor);
  }
  return TILEWISE_OK;
}

problem::Status check_sizes(const Problem& problem) {
  if (math::greater(problem.head_dim, problem.value_dim) > kMostColumns) {
    return fail(TILEWISE_UNSUPPORTED, "D is %lld and Dv is %lld, must be at most %lld",
                static_cast<long long>(problem.head_dim), static_cast<long long>(problem.value_dim),
                static_cast<long long>(kMostColumns));
  }
  for (const bool general : {false, true}) {
    const int row = row_for(problem, general);
    if (row < 0) {
      return fail(TILEWISE_UNSUPPORTED,
                  "a block of the device has less than %d bytes of shared memory", kSmall);
    }
    const Checked work = most_work(problem, kTiles[row].config(false).q_tile());
    const std::int64_t longest = math::greater(problem.q_rows, problem.k_rows);
    if (longest > tile::kMostRows || !work.valid || work.value > tile::kMostWork) {
      return fail(TILEWISE_UNSUPPORTED, "more than %lld rows or %lld tiles of queries",
                  static_cast<long long>(tile::kMostRows), static_cast<long long>(tile::kMostWork));
    }
  }
  return TILEWISE_OK;
}

Schedule schedule_of(const Problem& problem, const KernelConfig& config) {
  Schedule schedule = {static_cast<std::int32_t>(divided(problem.q_rows, config.q_tile())),
                       static_cast<std::int32_t>(problem.heads),
                       static_cast<std::int32_t>(problem.batch), 0};
  if (problem.window_left >= 0 || problem.window_right < 0) return schedule;
  const std::int64_t head_bytes =
      math::greater(problem.k_rows * (problem.head_dim + problem.value_dim) * 2, 1);
  const std::int64_t section =
      math::greater(kSectionBytes / head_bytes, 1) * math::greater(problem.group, 1);
  schedule.section =
      static_cast<std::int32_t>(math::lesser(section, problem.heads * problem.batch));
  return schedule;
}

// Rows that begin at multiples of 16 bytes and are as long.
bool is_wide(const problem::View& view, std::int64_t columns) {
  constexpr std::int64_t kElements = kAlignment / 2;
  for (const std::int64_t stride : {view.batch, view.head, view.row, columns}) {
    if (stride % kElements != 0) return false;
  }
  return reinterpret_cast<std::uintptr_t>(view.data) % kAlignment == 0;
}

Parameters parameters_for(const Problem& problem, const KernelConfig& config,
                          std::byte* workspace) {
  const Workspace places(problem);
  Parameters parameters = {};
  parameters.problem = problem;
  if (has_table(problem))
    parameters.table = reinterpret_cast<const Sequence*>(workspace + places.table);
  parameters.schedule = schedule_of(problem, config);
  parameters.packed = {reinterpret_cast<const std::int32_t*>(workspace + places.tile_starts),
                       static_cast<std::int32_t>(problem.heads),
                       static_cast<std::int32_t>(problem.batch),
                       problem.window_left < 0 && problem.window_right >= 0};
  parameters.bands = reinterpret_cast<const tile::Band*>(workspace + places.bands);
  parameters.marks = reinterpret_cast<std::uint16_t*>(workspace + places.marks);
  parameters.unit = static_cast<float>((config.general ? 1.0 : problem.scale) * math::kLog2E);
  parameters.wide = {is_wide(problem.q, problem.head_dim), is_wide(problem.k, problem.head_dim),
                     is_wide(problem.v, problem.value_dim),
                     problem.out.dtype == problem.dtype && is_wide(problem.out, problem.value_dim)};
  return parameters;
}

// Every launch in the order of the stream; nothing waits.
cudaError_t start(const Parameters& parameters, const Instance& instance, int multiprocessors,
                  cudaStream_t stream) {
  const Problem& problem = parameters.problem;
  const int q_tile = instance.config.q_tile();
  cudaError_t error = cudaSuccess;
  if (parameters.table != nullptr)
    error = fill_table(problem, const_cast<Sequence*>(parameters.table), stream);
  if (error == cudaSuccess && problem.q_packed)
    error = start_tile_starts(parameters, q_tile, stream);
  if (error == cudaSuccess && problem.slices.present()) error = start_bands(parameters, stream);
  if (error == cudaSuccess) error = fill_unowned(problem, parameters.table, stream);
  const std::int64_t blocks = most_work(problem, q_tile).value;
  if (error != cudaSuccess || blocks == 0 || problem.batch == 0) return error;
  error = instance.start(parameters, blocks, stream);
  if (error != cudaSuccess) return error;
  return start_repair(parameters, q_tile, multiprocessors, stream);
}

}  // namespace

problem::Status supports(const Problem& problem) {
  const problem::Status device = check_device(problem);
  if (device != TILEWISE_OK) return device;
  if (problem.dtype != TILEWISE_BF16 && problem.dtype != TILEWISE_FP16)
    return fail(TILEWISE_UNSUPPORTED, "q, k and v are not bf16 or fp16");
  return check_sizes(problem);
}

problem::Status prepare(const Problem& problem) {
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  for (const bool general : {false, true}) {
    const problem::Status loaded =
        check(instance_for(problem, general).load(), "loading cuda_sm80");
    if (loaded != TILEWISE_OK) return loaded;
  }
  return check(load_support(), "loading cuda_sm80");
}

std::int64_t workspace_bytes(const Problem& problem) { return Workspace(problem).bytes; }

problem::Status run(const Problem& problem, const problem::RunContext& context) {
  if (problem.heads == 0 || problem.q_rows == 0) return TILEWISE_OK;
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  DeviceInfo device;
  const problem::Status found = find_device(problem.device_index, &device);
  if (found != TILEWISE_OK) return found;
  const Instance& instance = instance_for(problem, is_general(problem));
  const Parameters parameters =
      parameters_for(problem, instance.config, static_cast<std::byte*>(context.workspace));
  return check(
      start(parameters, instance, device.multiprocessors, stream_of(context.executor->stream)),
      "starting cuda_sm80");
}

}  // namespace tilewise::cuda::sm80
