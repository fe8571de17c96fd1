#include "cuda/backward/sm80/launch.h"

#include <cstddef>

#include "cuda/backward/host.h"
#include "cuda/backward/sm80/kernel.h"
#include "cuda/host/instances.h"
#include "math/integer.h"

namespace tilewise::cuda::backward::sm80 {

namespace {

using problem::fail;

int row_for(const Problem& problem, bool score_mod) {
  return tile_row(math::max(problem.head_dim, problem.value_dim), score_mod,
                  cuda::sm80::shared_bytes(problem));
}

const KernelSet& kernels_for(const Problem& problem, bool score_mod) {
  static constexpr auto kSets = typed_instances_of<kKernelRows>([]<int kRow, bool kFp16>() {
    return kernel_set<BackwardKernel<kRow, kFp16>>(kKernels[kRow]);
  });
  const auto row = static_cast<std::size_t>(row_for(problem, score_mod));
  return kSets[row][problem.dtype == TILEWISE_FP16 ? 1 : 0];
}

int q_tile_for(const Problem& problem, bool score_mod) {
  return kKernels[row_for(problem, score_mod)].q_tile;
}

Workspace workspace_for(const Problem& problem) {
  return Workspace(problem, {kernels_for(problem, false).shape, kernels_for(problem, true).shape});
}

}  // namespace

problem::Status supports(const Problem& problem) {
  const problem::Status device = check_device(problem);
  if (device != TILEWISE_OK) return device;
  if (problem.dtype != TILEWISE_BF16 && problem.dtype != TILEWISE_FP16)
    return fail(TILEWISE_UNSUPPORTED, "q, k and v are not bf16 or fp16");
  if (problem.dalibi_slopes.present()) return fail(TILEWISE_UNSUPPORTED, "dalibi_slopes is given");
  const problem::Status tiles =
      cuda::sm80::check_tiles(problem, kMaxColumns, cuda::sm80::kSmall, row_for, q_tile_for);
  if (tiles != TILEWISE_OK) return tiles;
  const int k_tile =
      math::min(kKernels[row_for(problem, false)].k_tile, kKernels[row_for(problem, true)].k_tile);
  const problem::Status bias = check_bias_tiles(problem, kernels_for(problem, true));
  if (bias != TILEWISE_OK) return bias;
  return check_key_tiles(problem, k_tile);
}

problem::Status prepare(const Problem& problem) {
  return load_kernels(problem.device_index,
                      {kernels_for(problem, false).load, kernels_for(problem, true).load,
                       cuda::sm80::load_common_kernels, load_common_kernels},
                      "loading cuda_sm80");
}

std::int64_t workspace_bytes(const Problem& problem) { return workspace_for(problem).bytes(); }

double predicted_traffic(const Problem& problem) {
  const KernelSet& kernels = kernels_for(problem, cuda::sm80::needs_score_mod(problem));
  return predicted_gradient_traffic(problem, gradient_tiles(kernels.shape, kernels.k_tile));
}

problem::Status run(const Problem& problem, const problem::RunContext& context) {
  const bool score_mod = cuda::sm80::needs_score_mod(problem);
  return run_kernels(problem, context, kernels_for(problem, score_mod), score_mod,
                     workspace_for(problem), "starting cuda_sm80");
}

}  // namespace tilewise::cuda::backward::sm80
