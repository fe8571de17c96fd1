#include "cuda/forward/fp32/launch.h"

#include <cstddef>

#include "cuda/forward/fp32/kernel_table.h"
#include "cuda/forward/fp32/parameters.h"
#include "cuda/host/instances.h"
#include "cuda/host/traffic.h"
#include "cuda/sm80/host.h"
#include "math/integer.h"

namespace tilewise::cuda::fp32 {

namespace {

using problem::fail;

int row_for(const Problem& problem, bool score_mod) {
  return tile_row(math::max(problem.head_dim, problem.value_dim), score_mod,
                  sm80::shared_bytes(problem));
}

struct Instance {
  Load load;
  sm80::Start start;
};

const Instance& instance_for(const Problem& problem, bool score_mod) {
  static constexpr auto kInstances = instances_of<kKernelRows>([]<int kRow>() {
    return Instance{ForwardKernel<kRow>::load, ForwardKernel<kRow>::start};
  });
  return kInstances[static_cast<std::size_t>(row_for(problem, score_mod))];
}

int q_tile_for(const Problem& problem, bool score_mod) {
  return kKernels[row_for(problem, score_mod)].config().q_tile();
}

TileSizes tiles_for(const Problem& problem, bool score_mod) {
  return {q_tile_for(problem, score_mod), kKernels[row_for(problem, score_mod)].k_tile};
}

}  // namespace

problem::Status supports(const Problem& problem) {
  const problem::Status device = check_device(problem);
  if (device != TILEWISE_OK) return device;
  if (problem.dtype != TILEWISE_FP32) return fail(TILEWISE_UNSUPPORTED, "q, k and v are not fp32");
  const problem::Status pages = check_no_pages(problem);
  if (pages != TILEWISE_OK) return pages;
  return sm80::check_tiles(problem, kMaxColumns, kSmall, row_for, q_tile_for);
}

problem::Status prepare(const Problem& problem) {
  return load_kernels(problem.device_index,
                      {instance_for(problem, false).load, instance_for(problem, true).load,
                       sm80::load_common_kernels},
                      "loading cuda_fp32");
}

std::int64_t workspace_bytes(const Problem& problem) { return sm80::Workspace(problem).bytes(); }

double predicted_traffic(const Problem& problem) {
  return cuda::predicted_traffic(problem, tiles_for(problem, sm80::needs_score_mod(problem)));
}

problem::Status run(const Problem& problem, const problem::RunContext& context) {
  if (problem.heads == 0 || problem.q_rows == 0) return TILEWISE_OK;
  const bool score_mod = sm80::needs_score_mod(problem);
  const int q_tile = q_tile_for(problem, score_mod);
  const Parameters parameters =
      sm80::parameters_for(problem, q_tile, score_mod, sm80::Workspace(problem), context.workspace);
  const Instance& instance = instance_for(problem, score_mod);
  count_traffic(problem, parameters.schedule, tiles_for(problem, score_mod), context.traffic);
  return sm80::run_tiles(parameters, q_tile, context.executor->stream, "starting cuda_fp32",
                         [&](std::int64_t blocks, cudaStream_t stream) {
                           return instance.start(parameters, blocks, stream);
                         });
}

}  // namespace tilewise::cuda::fp32
