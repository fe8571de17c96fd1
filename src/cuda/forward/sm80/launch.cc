#include "cuda/forward/sm80/launch.h"

#include <cstddef>

#include "cuda/forward/sm80/kernel_table.h"
#include "cuda/host/instances.h"
#include "cuda/host/traffic.h"
#include "cuda/sm80/host.h"
#include "math/integer.h"

namespace tilewise::cuda::sm80 {

namespace {

using problem::fail;

int row_for(const Problem& problem, bool score_mod) {
  constexpr std::int64_t kAnyLength = std::int64_t{1} << 62;
  return tile_row(math::max(problem.head_dim, problem.value_dim), score_mod, shared_bytes(problem),
                  may_ask_for_longest(problem) ? problem.max_k : kAnyLength);
}

struct Instance {
  KernelConfig config;
  Load load;
  Start start;
};

const Instance& instance_for(const Problem& problem, bool score_mod) {
  static constexpr auto kInstances = typed_instances_of<kKernelRows>([]<int kRow, bool kFp16>() {
    using Kernel = ForwardKernel<kRow, kFp16>;
    return Instance{kKernels[kRow].config(kFp16), Kernel::load, Kernel::start};
  });
  const auto row = static_cast<std::size_t>(row_for(problem, score_mod));
  return kInstances[row][problem.dtype == TILEWISE_FP16 ? 1 : 0];
}

int q_tile_for(const Problem& problem, bool score_mod) {
  return kKernels[row_for(problem, score_mod)].config(false).q_tile();
}

TileSizes tiles_for(const Problem& problem, bool score_mod) {
  return {q_tile_for(problem, score_mod), kKernels[row_for(problem, score_mod)].k_tile};
}

}  // namespace

problem::Status supports(const Problem& problem) {
  const problem::Status device = check_device(problem);
  if (device != TILEWISE_OK) return device;
  if (problem.dtype != TILEWISE_BF16 && problem.dtype != TILEWISE_FP16)
    return fail(TILEWISE_UNSUPPORTED, "q, k and v are not bf16 or fp16");
  return check_tiles(problem, kMaxColumns, kSmall, row_for, q_tile_for);
}

problem::Status prepare(const Problem& problem) {
  return load_kernels(
      problem.device_index,
      {instance_for(problem, false).load, instance_for(problem, true).load, load_common_kernels},
      "loading cuda_sm80");
}

std::int64_t workspace_bytes(const Problem& problem) { return Workspace(problem).bytes(); }

double predicted_traffic(const Problem& problem) {
  return cuda::predicted_traffic(problem, tiles_for(problem, needs_score_mod(problem)));
}

problem::Status run(const Problem& problem, const problem::RunContext& context) {
  if (problem.heads == 0 || problem.q_rows == 0) return TILEWISE_OK;
  const bool score_mod = needs_score_mod(problem);
  const Instance& instance = instance_for(problem, score_mod);
  const int q_tile = instance.config.q_tile();
  Parameters parameters =
      parameters_for(problem, q_tile, score_mod, Workspace(problem), context.workspace);
  const bool wide_k = parameters.aligned16.k && problem.head_dim == instance.config.columns;
  const bool wide_v = parameters.aligned16.v && problem.value_dim == instance.config.columns;
  const bool paged = parameters.pages.present();  // no row of a page leads to the next one
  parameters.full_rows = {wide_k && !paged, wide_v && !paged};
  count_traffic(problem, parameters.schedule, tiles_for(problem, score_mod), context.traffic);
  return run_tiles(parameters, q_tile, context.executor->stream, "starting cuda_sm80",
                   [&](std::int64_t blocks, cudaStream_t stream) {
                     return instance.start(parameters, blocks, stream);
                   });
}

}  // namespace tilewise::cuda::sm80
