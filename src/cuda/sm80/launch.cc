#include "cuda/sm80/launch.h"

#include "cuda/sm80/frame.h"
#include "cuda/traffic.h"
#include "math/integer.h"

namespace tilewise::cuda::sm80 {

// Rows of the table, as the files compile them.
extern const Instance kForward_bf16_64[3], kForward_fp16_64[3];
extern const Instance kForward_bf16_128[2], kForward_fp16_128[2];
extern const Instance kForward_bf16_192[2], kForward_fp16_192[2];
extern const Instance kForward_bf16_256[2], kForward_fp16_256[2];
extern const Instance kForward_bf16_256_short[2], kForward_fp16_256_short[2];
extern const Instance kForward_bf16_general[2], kForward_fp16_general[2];

namespace {

using problem::fail;

int row_for(const Problem& problem, bool general) {
  constexpr std::int64_t kMany = std::int64_t{1} << 62;
  return tile_row(math::max(problem.head_dim, problem.value_dim), general, shared_bytes(problem),
                  may_ask_for_longest(problem) ? problem.max_k : kMany);
}

const Instance& instance_for(const Problem& problem, bool general) {
  static const Instance* const kRows[2][kTileRows] = {
      {&kForward_bf16_64[0], &kForward_bf16_64[1], &kForward_bf16_64[2], &kForward_bf16_128[0],
       &kForward_bf16_128[1], &kForward_bf16_192[0], &kForward_bf16_192[1], &kForward_bf16_256[0],
       &kForward_bf16_256[1], &kForward_bf16_256_short[0], &kForward_bf16_256_short[1],
       &kForward_bf16_general[0], &kForward_bf16_general[1]},
      {&kForward_fp16_64[0], &kForward_fp16_64[1], &kForward_fp16_64[2], &kForward_fp16_128[0],
       &kForward_fp16_128[1], &kForward_fp16_192[0], &kForward_fp16_192[1], &kForward_fp16_256[0],
       &kForward_fp16_256[1], &kForward_fp16_256_short[0], &kForward_fp16_256_short[1],
       &kForward_fp16_general[0], &kForward_fp16_general[1]}};
  return *kRows[problem.dtype == TILEWISE_FP16 ? 1 : 0][row_for(problem, general)];
}

int q_tile_for(const Problem& problem, bool general) {
  return kTiles[row_for(problem, general)].config(false).q_tile();
}

TileSizes tiles_for(const Problem& problem, bool general) {
  return {q_tile_for(problem, general), kTiles[row_for(problem, general)].k_tile};
}

Workspace workspace_for(const Problem& problem) {
  return Workspace(problem, {q_tile_for(problem, false), q_tile_for(problem, true)});
}

}  // namespace

problem::Status supports(const Problem& problem) {
  const problem::Status device = check_device(problem);
  if (device != TILEWISE_OK) return device;
  if (problem.dtype != TILEWISE_BF16 && problem.dtype != TILEWISE_FP16)
    return fail(TILEWISE_UNSUPPORTED, "q, k and v are not bf16 or fp16");
  return check_tiles(problem, kMostColumns, kSmall, row_for, q_tile_for);
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

std::int64_t workspace_bytes(const Problem& problem) {
  const problem::Checked bytes = workspace_for(problem).used();
  return bytes.valid ? bytes.value : -1;
}

double predicted_traffic(const Problem& problem) {
  return cuda::predicted_traffic(problem, tiles_for(problem, is_general(problem)));
}

problem::Status run(const Problem& problem, const problem::RunContext& context) {
  if (problem.heads == 0 || problem.q_rows == 0) return TILEWISE_OK;
  const bool general = is_general(problem);
  const Instance& instance = instance_for(problem, general);
  const int q_tile = instance.config.q_tile();
  Parameters parameters =
      parameters_for(problem, q_tile, general, workspace_for(problem), context.workspace);
  parameters.whole = {parameters.wide.k && problem.head_dim == instance.config.columns,
                      parameters.wide.v && problem.value_dim == instance.config.columns};
  count_traffic(problem, parameters.schedule, tiles_for(problem, general), context.traffic);
  return run_tiles(parameters, q_tile, context.executor->stream, "starting cuda_sm80",
                   [&](std::int64_t blocks, cudaStream_t stream) {
                     return instance.start(parameters, blocks, stream);
                   });
}

}  // namespace tilewise::cuda::sm80
