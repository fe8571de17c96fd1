#include "cuda/backward/sm90/launch.h"

#include <cstddef>
#include <limits>

#include "cuda/backward/host.h"
#include "cuda/backward/sm90/kernel.h"
#include "cuda/host/instances.h"
#include "cuda/host/sequences.cuh"
#include "cuda/mask/block_mask.h"
#include "math/integer.h"

namespace tilewise::cuda::backward::sm90 {

namespace {

using cuda::sm90::Rows;
using problem::fail;

using Start = cudaError_t (*)(const Parameters& parameters, std::int64_t blocks,
                              cudaStream_t stream);

struct Instance {
  KernelConfig config;
  Load load;
  Start start;
  Start start_dq;

  TileShape shape() const { return {config.q_tile, config.columns}; }
  mask::Tiling tiling() const { return {mask::Owner::kKeys, KernelConfig::kKTile, config.q_tile}; }
};

// Whether scores need more than a scale inside of the exponent.
bool needs_score_mod(const Problem& problem) {
  return problem.softcap > 0 || problem.alibi_slopes.present();
}

const Instance& instance_for(const Problem& problem) {
  static constexpr auto kInstances = typed_instances_of<kKernelRows>([]<int kRow, bool kFp16>() {
    using Kernel = BackwardKernel<kRow, kFp16>;
    return Instance{kKernels[kRow].config(kFp16), Kernel::load, Kernel::start, Kernel::start_dq};
  });
  const auto row =
      static_cast<std::size_t>(tile_row(math::max(problem.head_dim, problem.value_dim),
                                        needs_block_mask(problem), needs_score_mod(problem)));
  return kInstances[row][problem.dtype == TILEWISE_FP16 ? 1 : 0];
}

struct Workspace : backward::Workspace {
  mask::BlockMaskPlaces block_mask;

  explicit Workspace(const Problem& problem)
      : backward::Workspace(problem, {instance_for(problem).shape()}) {
    if (needs_block_mask(problem))
      block_mask = mask::reserve_block_mask(problem, {instance_for(problem).tiling()}, *this);
  }
};

// The tensors that TMA loads.
struct LoadedRows {
  Rows q, k, v, dout;
};
LoadedRows loaded_rows(const Problem& problem) {
  return {cuda::sm90::q_side("q", problem.q, problem, problem.head_dim),
          cuda::sm90::k_side("k", problem.k, problem, problem.head_dim),
          cuda::sm90::k_side("v", problem.v, problem, problem.value_dim),
          cuda::sm90::q_side("dout", problem.dout, problem, problem.value_dim)};
}

problem::Status check_strides(const Problem& problem) {
  const LoadedRows loaded = loaded_rows(problem);
  return cuda::sm90::check_maps({loaded.q, loaded.k, loaded.v, loaded.dout});
}

problem::Status check_options(const Problem& problem) {
  return mask::check_options(problem, {{"bias", problem.bias.present()},
                                       {"dalibi_slopes", problem.dalibi_slopes.present()},
                                       {"dropout_p", problem.dropout_p > 0}});
}

problem::Status make_maps(const Problem& problem, const KernelConfig& config,
                          Parameters* parameters) {
  const LoadedRows loaded = loaded_rows(problem);
  const struct {
    const Rows& rows;
    int tile_rows;
    TensorMap* map;
  } maps[] = {{loaded.q, config.q_tile, &parameters->q},
              {loaded.dout, config.q_tile, &parameters->dout},
              {loaded.k, config.block_keys(), &parameters->k},
              {loaded.v, config.block_keys(), &parameters->v}};
  for (const auto& [rows, tile_rows, map] : maps) {
    if (rows.rows == 0) continue;  // not loaded
    const problem::Status made = cuda::sm90::make_map(rows, tile_rows, map);
    if (made != TILEWISE_OK) return made;
  }
  return TILEWISE_OK;
}

// Starts the kernels that fill the block mask.
cudaError_t fill_block_mask(const Parameters& parameters, const mask::Tiling& tiling,
                            cudaStream_t stream) {
  const tile::BlockMask& block_mask = parameters.block_mask;
  const cudaError_t error = cudaMemsetAsync(block_mask.used, 0, sizeof(*block_mask.used), stream);
  if (error != cudaSuccess) return error;
  return mask::start_block_mask(
      {parameters.problem, block_mask, parameters.window_left, parameters.window_right}, tiling,
      stream);
}

}  // namespace

problem::Status supports(const Problem& problem) {
  const problem::Status device = cuda::sm90::check_hopper(problem.device_index);
  if (device != TILEWISE_OK) return device;
  if (problem.dtype != TILEWISE_BF16 && problem.dtype != TILEWISE_FP16)
    return fail(TILEWISE_UNSUPPORTED, "q, k and v are not bf16 or fp16");
  const problem::Status options = check_options(problem);
  if (options != TILEWISE_OK) return options;
  constexpr std::int64_t kColumnStep = 8;
  if (math::max(problem.head_dim, problem.value_dim) > kMaxColumns ||
      problem.head_dim % kColumnStep != 0 || problem.value_dim % kColumnStep != 0) {
    return fail(TILEWISE_UNSUPPORTED, "D is %lld and Dv is %lld, must be multiples of 8 up to %lld",
                static_cast<long long>(problem.head_dim), static_cast<long long>(problem.value_dim),
                static_cast<long long>(kMaxColumns));
  }
  if (math::max(problem.head_dim, problem.value_dim) > kMaxOptionColumns &&
      (needs_block_mask(problem) || needs_score_mod(problem))) {
    return fail(
        TILEWISE_UNSUPPORTED,
        "D is %lld and Dv is %lld, must be at most %lld with slices, mask, softcap or ALiBi",
        static_cast<long long>(problem.head_dim), static_cast<long long>(problem.value_dim),
        static_cast<long long>(kMaxOptionColumns));
  }
  const problem::Status tiles =
      cuda::sm80::check_tile_count(problem, instance_for(problem).config.q_tile);
  if (tiles != TILEWISE_OK) return tiles;
  const problem::Status key_tiles = check_key_tiles(problem, KernelConfig::kKTile);
  if (key_tiles != TILEWISE_OK) return key_tiles;
  if (needs_block_mask(problem)) {
    const problem::Status listed = mask::check_block_mask(problem, instance_for(problem).tiling());
    if (listed != TILEWISE_OK) return listed;
  }
  return check_strides(problem);
}

problem::Status prepare(const Problem& problem) {
  return load_kernels(problem.device_index,
                      {instance_for(problem).load, cuda::sm80::load_common_kernels,
                       load_common_kernels, mask::load_block_mask_kernels},
                      "loading cuda_sm90");
}

std::int64_t workspace_bytes(const Problem& problem) { return Workspace(problem).bytes(); }

double predicted_traffic(const Problem& problem) {
  const Instance& instance = instance_for(problem);
  if (instance.config.paired()) return std::numeric_limits<double>::quiet_NaN();
  return predicted_gradient_traffic(problem,
                                    gradient_tiles(instance.shape(), KernelConfig::kKTile));
}

problem::Status run(const Problem& problem, const problem::RunContext& context) {
  const problem::Status strides = check_strides(problem);
  if (strides != TILEWISE_OK) return strides;
  const Instance& instance = instance_for(problem);
  constexpr int kKTile = KernelConfig::kKTile;
  const Workspace places(problem);
  Parameters parameters = {};
  static_cast<backward::Parameters&>(parameters) =
      parameters_for(problem, instance.shape(), kKTile, instance.config.score_mod, places,
                     context.workspace, has_diagonal(problem) || needs_block_mask(problem));
  if (needs_block_mask(problem)) {
    parameters.block_mask =
        mask::block_mask_at(problem, instance.tiling(), places.block_mask,
                            static_cast<std::byte*>(context.workspace), parameters.bands);
  }
  const auto is_wide_gradient = [&](const problem::View& view, std::int64_t columns) {
    return view.dtype == problem.dtype && is_wide(view, columns);
  };
  parameters.wide_dq = is_wide_gradient(problem.dq, problem.head_dim);
  parameters.wide_dk = is_wide_gradient(problem.dk, problem.head_dim);
  parameters.wide_dv = is_wide_gradient(problem.dv, problem.value_dim);
  const problem::Status mapped = make_maps(problem, instance.config, &parameters);
  if (mapped != TILEWISE_OK) return mapped;
  if (!instance.config.paired()) {
    count_gradient_traffic(problem, gradient_tiles(instance.shape(), kKTile), context.traffic);
  }
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  const cudaStream_t stream = stream_of(context.executor->stream);
  cudaError_t error = start_preparation(parameters, kKTile, stream);
  if (error == cudaSuccess && needs_block_mask(problem))
    error = fill_block_mask(parameters, instance.tiling(), stream);
  const std::int64_t key_tiles = max_key_tiles(problem, kKTile).value;
  if (error == cudaSuccess && key_tiles > 0) error = instance.start(parameters, key_tiles, stream);
  const std::int64_t query_tiles = max_tiles(problem, instance.config.q_tile).value;
  if (error == cudaSuccess && problem.dq.present() && query_tiles > 0)
    error = instance.start_dq(parameters, query_tiles, stream);
  if (error == cudaSuccess) error = start_sink_gradient(parameters, stream);
  return check(error, "starting cuda_sm90");
}

}  // namespace tilewise::cuda::backward::sm90
