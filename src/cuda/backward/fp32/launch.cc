#include "cuda/backward/fp32/launch.h"

#include <cstddef>

#include "cuda/backward/fp32/kernel.h"
#include "cuda/backward/host.h"
#include "cuda/host/instances.h"
#include "math/integer.h"

namespace tilewise::cuda::backward::fp32 {

namespace {

using problem::fail;

// One kernel has all score mods.
int row_for(const Problem& problem, bool) {
  return tile_row(math::max(problem.head_dim, problem.value_dim),
                  cuda::sm80::shared_bytes(problem));
}

int q_tile_for(const Problem& problem, bool score_mod) {
  return kKernels[row_for(problem, score_mod)].q_tile;
}

const KernelSet& kernels_for(const Problem& problem) {
  static constexpr auto kSets = instances_of<kKernelRows>(
      []<int kRow>() { return kernel_set<BackwardKernel<kRow>>(kKernels[kRow]); });
  return kSets[static_cast<std::size_t>(row_for(problem, true))];
}

Workspace workspace_for(const Problem& problem) {
  return Workspace(problem, {kernels_for(problem).shape});
}

}  // namespace

problem::Status supports(const Problem& problem) {
  const problem::Status device = check_device(problem);
  if (device != TILEWISE_OK) return device;
  if (problem.dtype != TILEWISE_FP32) return fail(TILEWISE_UNSUPPORTED, "q, k and v are not fp32");
  if (problem.dalibi_slopes.present()) return fail(TILEWISE_UNSUPPORTED, "dalibi_slopes is given");
  const problem::Status tiles =
      cuda::sm80::check_tiles(problem, kMaxColumns, kSmall, row_for, q_tile_for);
  if (tiles != TILEWISE_OK) return tiles;
  const problem::Status bias = check_bias_tiles(problem, kernels_for(problem));
  return bias != TILEWISE_OK ? bias : check_key_tiles(problem, kernels_for(problem).k_tile);
}

problem::Status prepare(const Problem& problem) {
  return load_kernels(
      problem.device_index,
      {kernels_for(problem).load, cuda::sm80::load_common_kernels, load_common_kernels},
      "loading cuda_fp32");
}

std::int64_t workspace_bytes(const Problem& problem) { return workspace_for(problem).bytes(); }

double predicted_traffic(const Problem& problem) {
  const KernelSet& kernels = kernels_for(problem);
  return predicted_gradient_traffic(problem, gradient_tiles(kernels.shape, kernels.k_tile));
}

problem::Status run(const Problem& problem, const problem::RunContext& context) {
  return run_kernels(problem, context, kernels_for(problem), cuda::sm80::needs_score_mod(problem),
                     workspace_for(problem), "starting cuda_fp32");
}

}  // namespace tilewise::cuda::backward::fp32
