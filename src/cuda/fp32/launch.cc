#include "cuda/fp32/launch.h"

#include "cuda/fp32/config.h"
#include "cuda/fp32/parameters.h"
#include "cuda/sm80/frame.h"
#include "cuda/traffic.h"
#include "math/integer.h"

namespace tilewise::cuda::fp32 {

// Rows of the table, as the files compile them.
extern const Instance kForward_64[2], kForward_64_general[1];
extern const Instance kForward_128[2], kForward_128_general[1], kForward_128_general_small[1];
extern const Instance kForward_256[1], kForward_256_large[1], kForward_256_small[1];
extern const Instance kForward_256_general[2];

namespace {

using problem::fail;

int row_for(const Problem& problem, bool general) {
  return tile_row(math::max(problem.head_dim, problem.value_dim), general,
                  sm80::shared_bytes(problem));
}

const Instance& instance_for(const Problem& problem, bool general) {
  static const Instance* const kRows[kTileRows] = {&kForward_64[0],
                                                   &kForward_64[1],
                                                   &kForward_64_general[0],
                                                   &kForward_128[0],
                                                   &kForward_128[1],
                                                   &kForward_128_general[0],
                                                   &kForward_128_general_small[0],
                                                   &kForward_256[0],
                                                   &kForward_256_large[0],
                                                   &kForward_256_small[0],
                                                   &kForward_256_general[0],
                                                   &kForward_256_general[1]};
  return *kRows[row_for(problem, general)];
}

int q_tile_for(const Problem& problem, bool general) {
  return kTiles[row_for(problem, general)].config().q_tile();
}

TileSizes tiles_for(const Problem& problem, bool general) {
  return {q_tile_for(problem, general), kTiles[row_for(problem, general)].k_tile};
}

sm80::Workspace workspace_for(const Problem& problem) {
  return sm80::Workspace(problem, {q_tile_for(problem, false), q_tile_for(problem, true)});
}

}  // namespace

problem::Status supports(const Problem& problem) {
  const problem::Status device = check_device(problem);
  if (device != TILEWISE_OK) return device;
  if (problem.dtype != TILEWISE_FP32) return fail(TILEWISE_UNSUPPORTED, "q, k and v are not fp32");
  return sm80::check_tiles(problem, kMostColumns, kSmall, row_for, q_tile_for);
}

problem::Status prepare(const Problem& problem) {
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  for (const bool general : {false, true}) {
    const problem::Status loaded =
        check(instance_for(problem, general).load(), "loading cuda_fp32");
    if (loaded != TILEWISE_OK) return loaded;
  }
  return check(sm80::load_support(), "loading cuda_fp32");
}

std::int64_t workspace_bytes(const Problem& problem) {
  const problem::Checked bytes = workspace_for(problem).bytes();
  return bytes.valid ? bytes.value : -1;
}

double predicted_traffic(const Problem& problem) {
  return cuda::predicted_traffic(problem, tiles_for(problem, sm80::is_general(problem)));
}

problem::Status run(const Problem& problem, const problem::RunContext& context) {
  if (problem.heads == 0 || problem.q_rows == 0) return TILEWISE_OK;
  const bool general = sm80::is_general(problem);
  const int q_tile = q_tile_for(problem, general);
  const Parameters parameters =
      sm80::parameters_for(problem, q_tile, general, workspace_for(problem), context.workspace);
  const Instance& instance = instance_for(problem, general);
  count_traffic(problem, parameters.schedule, tiles_for(problem, general), context.traffic);
  return sm80::run_tiles(parameters, q_tile, context.executor->stream, "starting cuda_fp32",
                         [&](std::int64_t blocks, cudaStream_t stream) {
                           return instance.start(parameters, blocks, stream);
                         });
}

}  // namespace tilewise::cuda::fp32
