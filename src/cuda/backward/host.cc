#include "cuda/backward/host.h"

#include "cuda/host/sequences.cuh"
#include "math/integer.h"

namespace tilewise::cuda::backward {

using problem::Checked;
using problem::fail;

bool has_turns(const Problem& problem) {
  return problem.dq.present() && (problem.deterministic || problem.batch_invariant);
}

problem::Status check_key_tiles(const Problem& problem, std::int64_t k_tile) {
  const Checked tiles = max_key_tiles(problem, k_tile);
  if (tiles.valid && tiles.value <= tile::kMaxTiles) return TILEWISE_OK;
  return fail(TILEWISE_UNSUPPORTED, "more than %lld tiles of keys",
              static_cast<long long>(tile::kMaxTiles));
}

namespace {

// The tiles of the bias. A broadcast dimension has one.
Checked bias_tiles(const Problem& problem, const KernelSet& kernels) {
  const std::int64_t* const shape = problem.bias_shape;
  return Checked{shape[0]} * Checked{shape[1]} *
         Checked{math::ceil_div(shape[2], kernels.shape.q_tile)} *
         Checked{math::ceil_div(shape[3], kernels.k_tile)};
}

}  // namespace

problem::Status check_bias_tiles(const Problem& problem, const KernelSet& kernels) {
  if (!problem.dbias.present()) return TILEWISE_OK;
  const Checked tiles = bias_tiles(problem, kernels);
  if (tiles.valid && tiles.value <= tile::kMaxTiles) return TILEWISE_OK;
  return fail(TILEWISE_UNSUPPORTED, "more than %lld tiles of the bias",
              static_cast<long long>(tile::kMaxTiles));
}

Workspace::Workspace(const Problem& problem, std::initializer_list<TileShape> shapes)
    : cuda::sm80::Workspace(problem) {
  constexpr std::int64_t kFloat = sizeof(float);
  key_tile_starts = reserve(Checked{problem.k_packed ? (problem.batch + 1) * 4 : 0}).value;
  Checked rows, sums, tiles;  // the most of any shape
  const auto take_larger = [](Checked& most, const Checked& x) {
    most = {math::max(most.value, x.value), most.valid && x.valid};
  };
  for (const TileShape& shape : shapes) {
    const Checked own = max_tiles(problem, shape.q_tile) * Checked{shape.q_tile};
    take_larger(rows, own);
    take_larger(tiles, max_tiles(problem, shape.q_tile));
    take_larger(sums, own * Checked{problem.dq.present() ? shape.columns : 0});
  }
  statistics = reserve(rows * Checked{2 * kFloat}).value;
  dq_sums = reserve(sums * Checked{kFloat}).value;
  constexpr std::int64_t kTurn = sizeof(unsigned long long);
  turns = reserve(tiles * Checked{has_turns(problem) ? kTurn : 0}).value;
  ticket = reserve(Checked{has_turns(problem) ? kTurn : 0}).value;
}

Parameters parameters_for(const Problem& problem, const TileShape& shape, int k_tile,
                          bool score_mod, const Workspace& offsets, void* workspace,
                          bool longest_first) {
  std::byte* const bytes = static_cast<std::byte*>(workspace);
  Parameters parameters = {};
  static_cast<cuda::sm80::Parameters&>(parameters) =
      cuda::sm80::parameters_for(problem, shape.q_tile, score_mod, offsets, workspace);
  parameters.key_schedule = key_schedule_of(problem, k_tile, longest_first, has_turns(problem));
  parameters.key_packed = {reinterpret_cast<const std::int32_t*>(bytes + offsets.key_tile_starts),
                           static_cast<std::int32_t>(problem.kv_heads),
                           static_cast<std::int32_t>(problem.batch), longest_first};
  parameters.shape = shape;
  parameters.score_mod = score_mod;
  parameters.statistics = reinterpret_cast<float*>(bytes + offsets.statistics);
  if (problem.dq.present()) parameters.dq_sums = reinterpret_cast<float*>(bytes + offsets.dq_sums);
  if (has_turns(problem)) {
    parameters.turns = reinterpret_cast<unsigned long long*>(bytes + offsets.turns);
    parameters.ticket = reinterpret_cast<unsigned*>(bytes + offsets.ticket);
  }
  parameters.aligned16_dout = is_wide(problem.dout, problem.value_dim);
  return parameters;
}

cudaError_t start_preparation(const Parameters& parameters, int k_tile, cudaStream_t stream) {
  const Problem& problem = parameters.problem;
  cudaError_t error = cuda::sm80::start_preparation(parameters, parameters.shape.q_tile, stream);
  if (error == cudaSuccess && problem.k_packed) {
    error = cuda::sm80::start_tile_starts(parameters, cuda::sm80::Side::kKeys, k_tile,
                                          parameters.key_packed.tile_starts, stream);
  }
  if (error == cudaSuccess) {
    error = start_preprocess(parameters, max_tiles(problem, parameters.shape.q_tile).value, stream);
  }
  return error;
}

problem::Status run_kernels(const Problem& problem, const problem::RunContext& context,
                            const KernelSet& kernels, bool score_mod, const Workspace& offsets,
                            const char* what) {
  const int k_tile = kernels.k_tile;
  const Parameters parameters = parameters_for(problem, kernels.shape, k_tile, score_mod, offsets,
                                               context.workspace, has_diagonal(problem));
  count_gradient_traffic(problem, gradient_tiles(kernels.shape, k_tile), context.traffic);
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  const cudaStream_t stream = stream_of(context.executor->stream);
  cudaError_t error = start_preparation(parameters, k_tile, stream);
  const std::int64_t key_tiles = max_key_tiles(problem, k_tile).value;
  if (error == cudaSuccess && key_tiles > 0) error = kernels.start(parameters, key_tiles, stream);
  const std::int64_t query_tiles = max_tiles(problem, kernels.shape.q_tile).value;
  if (error == cudaSuccess && problem.dq.present() && query_tiles > 0)
    error = kernels.start_dq(parameters, query_tiles, stream);
  const std::int64_t of_bias = problem.dbias.present() ? bias_tiles(problem, kernels).value : 0;
  if (error == cudaSuccess && of_bias > 0) error = kernels.start_dbias(parameters, of_bias, stream);
  if (error == cudaSuccess) error = start_sink_gradient(parameters, stream);
  return check(error, what);
}

}  // namespace tilewise::cuda::backward
