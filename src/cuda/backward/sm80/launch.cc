#include "cuda/backward/sm80/launch.h"

#include <array>
#include <utility>

#include "cuda/backward/host.h"
#include "cuda/backward/sm80/kernel.h"
#include "math/integer.h"

namespace tilewise::cuda::backward::sm80 {

namespace {

using problem::fail;

using Start = cudaError_t (*)(const Parameters& parameters, std::int64_t blocks,
                              cudaStream_t stream);

struct Instance {
  KernelConfig config;
  cudaError_t (*load)();
  Start start;
  Start start_dq;
  Start start_dbias;

  TileShape shape() const { return {config.q_tile, config.columns}; }
};

template <std::size_t... kIndex>
constexpr std::array<Instance, sizeof...(kIndex)> make_instances(std::index_sequence<kIndex...>) {
  return {{{kKernels[kIndex / 2].config(kIndex % 2 != 0),
            BackwardKernel<kIndex / 2, kIndex % 2 != 0>::load,
            BackwardKernel<kIndex / 2, kIndex % 2 != 0>::start,
            BackwardKernel<kIndex / 2, kIndex % 2 != 0>::start_dq,
            BackwardKernel<kIndex / 2, kIndex % 2 != 0>::start_dbias}...}};
}

int row_for(const Problem& problem, bool score_mod) {
  return tile_row(math::max(problem.head_dim, problem.value_dim), score_mod,
                  cuda::sm80::shared_bytes(problem));
}

const Instance& instance_for(const Problem& problem, bool score_mod) {
  static constexpr auto kInstances =
      make_instances(std::make_index_sequence<std::size_t{2} * kKernelRows>());
  const auto row = static_cast<std::size_t>(row_for(problem, score_mod));
  return kInstances[2 * row + (problem.dtype == TILEWISE_FP16 ? 1 : 0)];
}

int q_tile_for(const Problem& problem, bool score_mod) {
  return kKernels[row_for(problem, score_mod)].q_tile;
}

// The tiles of the bias. A broadcast dimension has one.
problem::Checked bias_tiles(const Problem& problem) {
  const KernelConfig& config = instance_for(problem, true).config;
  const std::int64_t* const shape = problem.bias_shape;
  return problem::Checked{shape[0]} * problem::Checked{shape[1]} *
         problem::Checked{math::ceil_div(shape[2], config.q_tile)} *
         problem::Checked{math::ceil_div(shape[3], config.k_tile)};
}

Workspace workspace_for(const Problem& problem) {
  return Workspace(problem,
                   {instance_for(problem, false).shape(), instance_for(problem, true).shape()});
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
  if (problem.dbias.present()) {
    const problem::Checked bias = bias_tiles(problem);
    if (!bias.valid || bias.value > tile::kMaxTiles) {
      return fail(TILEWISE_UNSUPPORTED, "more than %lld tiles of the bias",
                  static_cast<long long>(tile::kMaxTiles));
    }
  }
  return check_key_tiles(problem, k_tile);
}

problem::Status prepare(const Problem& problem) {
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  for (const bool score_mod : {false, true}) {
    const problem::Status loaded =
        check(instance_for(problem, score_mod).load(), "loading cuda_sm80");
    if (loaded != TILEWISE_OK) return loaded;
  }
  const problem::Status common = check(cuda::sm80::load_common_kernels(), "loading cuda_sm80");
  return common != TILEWISE_OK ? common : check(load_common_kernels(), "loading cuda_sm80");
}

std::int64_t workspace_bytes(const Problem& problem) { return workspace_for(problem).bytes(); }

problem::Status run(const Problem& problem, const problem::RunContext& context) {
  constexpr const char* kWhat = "starting cuda_sm80";
  const bool score_mod = cuda::sm80::needs_score_mod(problem);
  const Instance& instance = instance_for(problem, score_mod);
  const int k_tile = instance.config.k_tile;
  const Parameters parameters =
      parameters_for(problem, instance.shape(), k_tile, score_mod, workspace_for(problem),
                     context.workspace, has_diagonal(problem));
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  const cudaStream_t stream = stream_of(context.executor->stream);
  cudaError_t error = start_preparation(parameters, k_tile, stream);
  const std::int64_t key_tiles = max_key_tiles(problem, k_tile).value;
  if (error == cudaSuccess && key_tiles > 0) error = instance.start(parameters, key_tiles, stream);
  const std::int64_t query_tiles = max_tiles(problem, instance.config.q_tile).value;
  if (error == cudaSuccess && problem.dq.present() && query_tiles > 0)
    error = instance.start_dq(parameters, query_tiles, stream);
  if (error == cudaSuccess && problem.dbias.present() && bias_tiles(problem).value > 0)
    error = instance.start_dbias(parameters, bias_tiles(problem).value, stream);
  if (error == cudaSuccess) error = start_sink_gradient(parameters, stream);
  return check(error, kWhat);
}

}  // namespace tilewise::cuda::backward::sm80
