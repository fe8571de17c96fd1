#include "cuda/ladder/backward_launch.h"

#include "cuda/backward/host.h"
#include "cuda/ladder/backward_parameters.h"
#include "cuda/ladder/host.h"
#include "math/integer.h"

namespace tilewise::cuda::ladder {

namespace {

using problem::Checked;
using problem::fail;

struct Flash1Instance {
  Load load;
  backward::Start start;
  backward::Start start_dq;
};
struct StandardGradientInstance {
  Load load;
  cudaError_t (*start_keys)(const GradientParameters& parameters, KeyProduct product,
                            std::int64_t blocks, cudaStream_t stream);
  cudaError_t (*start_queries)(const GradientParameters& parameters, std::int64_t blocks,
                               cudaStream_t stream);
};

const Flash1Instance& flash1_instance(const Problem& problem) {
  static constexpr auto kInstances = typed_instances_of<kKernelRows>([]<int kRow, bool kFp16>() {
    using Kernel = Flash1GradientKernel<kRow, kFp16>;
    return Flash1Instance{Kernel::load, Kernel::start, Kernel::start_dq};
  });
  return of_problem(kInstances, problem);
}
const StandardGradientInstance& gradient_instance(const Problem& problem) {
  static constexpr auto kInstances = typed_instances_of<kKernelRows>([]<int kRow, bool kFp16>() {
    using Kernel = StandardGradientKernel<kRow, kFp16>;
    return StandardGradientInstance{Kernel::load, Kernel::start_keys, Kernel::start_queries};
  });
  return of_problem(kInstances, problem);
}

const backward::sm80::TileRow& flash1_tile(const Problem& problem) {
  return kFlash1Gradients[row_for(problem, false)];
}
backward::TileShape shape_of(const backward::sm80::TileRow& tile) {
  return {tile.q_tile, tile.columns};
}
GradientTiles flash1_tiles(const Problem& problem) {
  const backward::sm80::TileRow& tile = flash1_tile(problem);
  return {{tile.q_tile, tile.k_tile}, tile.columns, true};
}

// A row of each gradient has one block that writes it, so that no blocks take turns.
Problem without_turns(const Problem& problem) {
  Problem own = problem;
  own.deterministic = own.batch_invariant = false;
  return own;
}

// Standard attention keeps no sums of dQ.
backward::TileShape standard_shape(const Problem& problem) {
  return {standard_tile(problem).config(false).q_tile(), 0};
}

struct StandardWorkspace : backward::Workspace {
  explicit StandardWorkspace(const Problem& problem)
      : Workspace(problem, {standard_shape(problem)}) {
    const Checked elements = rows_of(problem) * Checked{score_stride(problem)};
    scores = reserve(elements * Checked{4}).value;
    products = reserve(elements * Checked{problem.softcap > 0 ? 4 : 0}).value;
    dprobs = reserve(elements * Checked{4}).value;
    probs = reserve(elements * Checked{2}).value;
    dscores = reserve(elements * Checked{2}).value;
  }

  std::int64_t scores;
  std::int64_t products;
  std::int64_t dprobs;
  std::int64_t probs;
  std::int64_t dscores;
};

GradientParameters standard_parameters(const Problem& problem, const StandardWorkspace& offsets,
                                       void* workspace) {
  GradientParameters parameters = {};
  parameters.tiles =
      backward::parameters_for(problem, standard_shape(problem), standard_tile(problem).k_tile,
                               true, offsets, workspace, false);
  parameters.tiles.dq_sums = nullptr;
  parameters.scores = at<float>(workspace, offsets.scores);
  parameters.products = at<float>(workspace, offsets.products);
  parameters.dprobs = at<float>(workspace, offsets.dprobs);
  parameters.probs = at<std::uint16_t>(workspace, offsets.probs);
  parameters.dscores = at<std::uint16_t>(workspace, offsets.dscores);
  parameters.score_stride = score_stride(problem);
  return parameters;
}

// S = Q K^T of a problem whose scores are dP = dO V^T: there are no score mods and no mask.
Problem problem_of_dprobs(const Problem& problem) {
  Problem own = problem;
  own.q = problem.dout;
  own.k = problem.v;
  own.head_dim = problem.value_dim;
  own.scale = 1;
  own.softcap = 0;
  own.bias = own.mask = own.alibi_slopes = {};
  own.slices = {};
  own.window_left = own.window_right = -1;
  return own;
}

// Starts the kernel of S = Q K^T. products: nullptr, or where Q K^T goes without score mods
cudaError_t start_scores(const Problem& problem, const sm80::Workspace& offsets, void* workspace,
                         float* scores, float* products, cudaStream_t stream) {
  const int q_tile = standard_tile(problem).config(false).q_tile();
  const std::int64_t blocks = max_tiles(problem, q_tile).value;
  if (blocks == 0 || problem.batch == 0) return cudaSuccess;
  Parameters parameters = {};
  parameters.tiles = sm80::parameters_for(problem, q_tile, true, offsets, workspace);
  parameters.scores = scores;
  parameters.products = products;
  parameters.score_stride = score_stride(problem);
  return standard_instance(problem).start_scores(parameters, blocks, stream);
}

}  // namespace

problem::Status supports_flash1_gradient(const Problem& problem) {
  if (problem.has_score_mod() || problem.dropout_p > 0 || problem.slices.present()) {
    return fail(TILEWISE_UNSUPPORTED,
                "takes no softcap, bias, mask, alibi_slopes, dropout_p or slices");
  }
  const problem::Status status =
      check_problem(problem, [](const Problem& own, bool) { return flash1_tile(own).q_tile; });
  if (status != TILEWISE_OK) return status;
  return backward::check_key_tiles(problem, flash1_tile(problem).k_tile);
}

problem::Status prepare_flash1_gradient(const Problem& problem) {
  return load_kernels(
      problem.device_index,
      {flash1_instance(problem).load, sm80::load_common_kernels, backward::load_common_kernels},
      "loading cuda_flash1");
}

std::int64_t workspace_of_flash1_gradient(const Problem& problem) {
  return backward::Workspace(without_turns(problem), {shape_of(flash1_tile(problem))}).bytes();
}

double predicted_traffic_of_flash1_gradient(const Problem& problem) {
  return predicted_gradient_traffic(problem, flash1_tiles(problem));
}

problem::Status run_flash1_gradient(const Problem& given, const problem::RunContext& context) {
  const Problem problem = without_turns(given);
  const backward::sm80::TileRow& tile = flash1_tile(problem);
  const Flash1Instance& instance = flash1_instance(problem);
  // The kernel multiplies the scores by the scale, of either sign, before the exponent.
  const backward::Parameters parameters = backward::parameters_for(
      problem, shape_of(tile), tile.k_tile, true, backward::Workspace(problem, {shape_of(tile)}),
      context.workspace, false);
  count_gradient_traffic(problem, flash1_tiles(problem), context.traffic);
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  const cudaStream_t stream = stream_of(context.executor->stream);
  cudaError_t error = backward::start_preparation(parameters, tile.k_tile, stream);
  const std::int64_t kv_heads = problem.batch * problem.kv_heads;
  if (error == cudaSuccess && kv_heads > 0) error = instance.start(parameters, kv_heads, stream);
  const std::int64_t query_tiles = max_tiles(problem, tile.q_tile).value;
  if (error == cudaSuccess && problem.dq.present() && query_tiles > 0)
    error = instance.start_dq(parameters, query_tiles, stream);
  if (error == cudaSuccess) error = backward::start_sink_gradient(parameters, stream);
  return check(error, "starting cuda_flash1");
}

problem::Status supports_standard_gradient(const Problem& problem) {
  if (problem.dbias.present()) return fail(TILEWISE_UNSUPPORTED, "dbias is given");
  if (problem.dalibi_slopes.present()) return fail(TILEWISE_UNSUPPORTED, "dalibi_slopes is given");
  const problem::Status status = check_standard(problem);
  if (status != TILEWISE_OK) return status;
  return backward::check_key_tiles(problem, standard_tile(problem).k_tile);
}

problem::Status prepare_standard_gradient(const Problem& problem) {
  return load_kernels(
      problem.device_index,
      {standard_instance(problem).load, gradient_instance(problem).load, load_score_gradients,
       sm80::load_common_kernels, backward::load_common_kernels},
      "loading cuda_standard");
}

std::int64_t workspace_of_standard_gradient(const Problem& problem) {
  return StandardWorkspace(without_turns(problem)).bytes();
}

double predicted_traffic_of_standard_gradient(const Problem& problem) {
  return predicted_standard_gradient_traffic(problem, tiles_of(standard_tile(problem)));
}

problem::Status run_standard_gradient(const Problem& given, const problem::RunContext& context) {
  const Problem problem = without_turns(given);
  const StandardGradientInstance& instance = gradient_instance(problem);
  const TileSizes sizes = tiles_of(standard_tile(problem));
  const StandardWorkspace offsets(problem);
  const GradientParameters parameters = standard_parameters(problem, offsets, context.workspace);
  count_standard_gradient_traffic(problem, sizes, context.traffic);
  const CurrentDevice current(problem.device_index);
  if (current.status() != TILEWISE_OK) return current.status();
  const cudaStream_t stream = stream_of(context.executor->stream);
  const std::int64_t key_tiles = max_key_tiles(problem, sizes.k_rows).value;
  const std::int64_t query_tiles = max_tiles(problem, sizes.q_rows).value;
  const auto scores = [&](const Problem& own, std::int64_t to, float* products) {
    return start_scores(own, offsets, context.workspace, at<float>(context.workspace, to), products,
                        stream);
  };
  float* const products =
      problem.softcap > 0 ? at<float>(context.workspace, offsets.products) : nullptr;
  cudaError_t error = backward::start_preparation(parameters.tiles, sizes.k_rows, stream);
  if (error == cudaSuccess) error = scores(problem, offsets.scores, products);
  if (error == cudaSuccess) error = scores(problem_of_dprobs(problem), offsets.dprobs, nullptr);
  if (error == cudaSuccess) error = start_score_gradients(parameters, sizes.k_rows, stream);
  if (error == cudaSuccess && problem.dv.present() && key_tiles > 0)
    error = instance.start_keys(parameters, KeyProduct::kValues, key_tiles, stream);
  if (error == cudaSuccess && problem.dk.present() && key_tiles > 0)
    error = instance.start_keys(parameters, KeyProduct::kKeys, key_tiles, stream);
  if (error == cudaSuccess && problem.dq.present() && query_tiles > 0)
    error = instance.start_queries(parameters, query_tiles, stream);
  if (error == cudaSuccess) error = backward::start_sink_gradient(parameters.tiles, stream);
  return check(error, "starting cuda_standard");
}

}  // namespace tilewise::cuda::ladder
