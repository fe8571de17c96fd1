#include "cuda/sm80/host.h"

#include <cstdlib>

#include "cuda/host/bands.h"
#include "cuda/host/sequences.cuh"
#include "math/integer.h"

namespace tilewise::cuda::sm80 {
using problem::Checked;
using problem::fail;

problem::Status check_tile_count(const Problem& problem, int q_tile) {
  const Checked work = max_tiles(problem, q_tile);
  const std::int64_t longest = math::max(problem.q_rows, problem.k_rows);
  if (longest > tile::kMaxRows || !work.valid || work.value > tile::kMaxTiles) {
    return fail(TILEWISE_UNSUPPORTED, "more than %lld rows or %lld tiles of queries",
                static_cast<long long>(tile::kMaxRows), static_cast<long long>(tile::kMaxTiles));
  }
  return TILEWISE_OK;
}

problem::Status check_tiles(const Problem& problem, std::int64_t max_columns, int min_bytes,
                            int (*row_for)(const Problem&, bool),
                            int (*q_tile_for)(const Problem&, bool)) {
  if (math::max(problem.head_dim, problem.value_dim) > max_columns) {
    return fail(TILEWISE_UNSUPPORTED, "D is %lld and Dv is %lld, must be at most %lld",
                static_cast<long long>(problem.head_dim), static_cast<long long>(problem.value_dim),
                static_cast<long long>(max_columns));
  }
  for (const bool score_mod : {false, true}) {
    if (row_for(problem, score_mod) < 0) {
      return fail(TILEWISE_UNSUPPORTED,
                  "a block of the device has less than %d bytes of shared memory", min_bytes);
    }
    const problem::Status work = check_tile_count(problem, q_tile_for(problem, score_mod));
    if (work != TILEWISE_OK) return work;
  }
  return TILEWISE_OK;
}

std::int64_t shared_bytes(const Problem& problem) {
  static const std::int64_t limit = [] {
    const char* const given = std::getenv("TILEWISE_CUDA_SHARED_BYTES");
    return given != nullptr && given[0] != '\0' ? std::strtoll(given, nullptr, 10) : INT64_MAX;
  }();
  DeviceInfo device;
  if (find_device(problem.device_index, &device) != TILEWISE_OK) return 0;
  return math::min(device.shared_bytes, limit);
}

bool needs_score_mod(const Problem& problem) {
  constexpr double kLeastScale = 1e-30;
  return problem.has_score_mod() || problem.dropout_p > 0 || problem.scale < kLeastScale;
}

Workspace::Workspace(const Problem& problem) {
  table = reserve(Checked{table_bytes(problem)}).value;
  tile_starts = reserve(Checked{problem.varlen_q() ? (problem.batch + 1) * 4 : 0}).value;
  bands = reserve(Checked{band_table_bytes(problem)}).value;
}

Parameters parameters_for(const Problem& problem, int q_tile, bool score_mod,
                          const Workspace& offsets, void* workspace) {
  std::byte* const bytes = static_cast<std::byte*>(workspace);
  Parameters parameters = {};
  parameters.problem = problem;
  if (has_table(problem))
    parameters.table = reinterpret_cast<const Sequence*>(bytes + offsets.table);
  parameters.schedule = schedule_of(problem, q_tile);
  parameters.packed = packed_schedule_of(problem, bytes + offsets.tile_starts);
  parameters.bands = reinterpret_cast<const tile::Band*>(bytes + offsets.bands);
  parameters.window_left =
      static_cast<std::int32_t>(math::min(problem.window_left, tile::kMaxLength));
  parameters.window_right =
      static_cast<std::int32_t>(math::min(problem.window_right, tile::kMaxLength));
  parameters.scale_log2 = static_cast<float>((score_mod ? 1.0 : problem.scale) * math::kLog2E);
  parameters.scaling = tile::score_scaling_of(problem.scale, problem.softcap);
  parameters.pair_loads = tile::pair_loads_of(problem);
  parameters.pages = tile::pages_of(problem);
  parameters.aligned16 = {
      is_wide(problem.q, problem.head_dim), is_wide(problem.k, problem.head_dim),
      is_wide(problem.v, problem.value_dim),
      problem.out.dtype == problem.dtype && is_wide(problem.out, problem.value_dim)};
  return parameters;
}

cudaError_t start_preparation(const Parameters& parameters, int q_tile, cudaStream_t stream) {
  const Problem& problem = parameters.problem;
  cudaError_t error = cudaSuccess;
  if (parameters.table != nullptr)
    error = fill_table(problem, const_cast<Sequence*>(parameters.table), stream);
  if (error == cudaSuccess && problem.varlen_q())
    error = start_tile_starts(parameters, Side::kQueries, q_tile, parameters.packed.tile_starts,
                              stream);
  if (error == cudaSuccess && problem.slices.present())
    error = start_bands(problem, parameters.bands, stream);
  if (error == cudaSuccess) error = fill_unowned_rows(problem, parameters.table, stream);
  return error;
}

}  // namespace tilewise::cuda::sm80
