#include "cuda/backward/sm80/launch.h"

#include <array>
#include <utility>

#include "cuda/backward/host.h"
#include "cuda/backward/sm80/kernel.h"
#include "math/integer.h"

namespace tilewise::cuda::backward::sm80 {

namespace {

using problem::fail;

template <std::size_t kIndex>
constexpr KernelSet kernel_set() {
  constexpr int kRow = static_cast<int>(kIndex / 2);
  using Kernel = BackwardKernel<kRow, kIndex % 2 != 0>;
  constexpr TileRow kTile = kKernels[kRow];
  return {{kTile.q_tile, kTile.columns},
          kTile.k_tile,
          Kernel::load,
          Kernel::start,
          Kernel::start_dq,
          Kernel::start_dbias};
}

template <std::size_t... kIndex>
constexpr std::array<KernelSet, sizeof...(kIndex)> make_kernel_sets(
    std::index_sequence<kIndex...>) {
  return {{kernel_set<kIndex>()...}};
}

int row_for(const Problem& problem, bool score_mod) {
  return tile_row(math::max(problem.head_dim, problem.value_dim), score_mod,
                  cuda::sm80::shared_bytes(problem));
}

const KernelSet& kernels_for(const Problem& problem, bool score_mod) {
  static constexpr auto kSets =
      make_kernel_sets(std::make_index_sequence<std::size_t{2} * kKernelRows>());
  const auto row = static_cast<std::size_t>(row_for(problem, score_mod));
  return kSets[2 * row + (problem.dtype == TILEWISE_FP16 ? 1 : 0)];
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
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  for (const bool score_mod : {false, true}) {
    const problem::Status loaded =
        check(kernels_for(problem, score_mod).load(), "loading cuda_sm80");
    if (loaded != TILEWISE_OK) return loaded;
  }
  const problem::Status common = check(cuda::sm80::load_common_kernels(), "loading cuda_sm80");
  return common != TILEWISE_OK ? common : check(load_common_kernels(), "loading cuda_sm80");
}

std::int64_t workspace_bytes(const Problem& problem) { return workspace_for(problem).bytes(); }

problem::Status run(const Problem& problem, const problem::RunContext& context) {
  const bool score_mod = cuda::sm80::needs_score_mod(problem);
  return run_kernels(problem, context, kernels_for(problem, score_mod), score_mod,
                     workspace_for(problem), "starting cuda_sm80");
}

}  // namespace tilewise::cuda::backward::sm80
