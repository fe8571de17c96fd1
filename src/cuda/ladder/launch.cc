#include "cuda/ladder/launch.h"

#include "cuda/ladder/host.h"
#include "math/integer.h"

namespace tilewise::cuda::ladder {

namespace {

using problem::Checked;
using problem::fail;

const TileRow& flash1_tile(const Problem& problem) {
  return kFlash1Kernels[row_for(problem, false)];
}

struct Flash1Instance {
  Load load;
  Start start;
};
const Flash1Instance& flash1_instance(const Problem& problem) {
  static constexpr auto kInstances = typed_instances_of<kKernelRows>([]<int kRow, bool kFp16>() {
    using Kernel = Flash1Kernel<kRow, kFp16>;
    return Flash1Instance{Kernel::load, Kernel::start};
  });
  return of_problem(kInstances, problem);
}

int flash1_q_tile(const Problem& problem, bool) {
  return flash1_tile(problem).config(false).q_tile();
}

struct Flash1Workspace : sm80::Workspace {
  explicit Flash1Workspace(const Problem& problem)
      : Workspace(problem),
        out(reserve(rows_of(problem) * Checked{value_stride(problem)} * Checked{4}).value),
        states(reserve(rows_of(problem) * Checked{8}).value) {}

  std::int64_t out;
  std::int64_t states;
};
struct StandardWorkspace : sm80::Workspace {
  explicit StandardWorkspace(const Problem& problem)
      : Workspace(problem),
        scores(reserve(rows_of(problem) * Checked{score_stride(problem)} * Checked{4}).value),
        probs(reserve(rows_of(problem) * Checked{score_stride(problem)} * Checked{2}).value) {}

  std::int64_t scores;
  std::int64_t probs;
};

}  // namespace

problem::Status supports_flash1(const Problem& problem) {
  if (problem.has_score_mod() || problem.dropout_p > 0 || problem.slices.present()) {
    return fail(TILEWISE_UNSUPPORTED,
                "takes no softcap, bias, mask, alibi_slopes, dropout_p or slices");
  }
  return check_problem(problem, flash1_q_tile);
}

problem::Status prepare_flash1(const Problem& problem) {
  return load_kernels(problem.device_index,
                      {flash1_instance(problem).load, sm80::load_common_kernels},
                      "loading cuda_flash1");
}

std::int64_t workspace_of_flash1(const Problem& problem) {
  return Flash1Workspace(problem).bytes();
}

double predicted_traffic_of_flash1(const Problem& problem) {
  return predicted_flash1_traffic(problem, tiles_of(flash1_tile(problem)));
}

problem::Status run_flash1(const Problem& problem, const problem::RunContext& context) {
  if (problem.heads == 0 || problem.q_rows == 0) return TILEWISE_OK;
  const int q_tile = flash1_q_tile(problem, false);
  const Flash1Workspace offsets(problem);
  Parameters parameters = {};
  // The kernel multiplies the scores by the scale, of either sign, before the exponent.
  parameters.tiles = sm80::parameters_for(problem, q_tile, true, offsets, context.workspace);
  parameters.tiles.schedule.swizzle = 0;
  parameters.tiles.packed.longest_first = false;
  parameters.out = at<float>(context.workspace, offsets.out);
  parameters.states = at<float>(context.workspace, offsets.states);
  parameters.value_stride = value_stride(problem);
  count_flash1_traffic(problem, tiles_of(flash1_tile(problem)), context.traffic);
  return sm80::run_tiles(parameters.tiles, q_tile, context.executor->stream, "starting cuda_flash1",
                         [&](std::int64_t, cudaStream_t stream) {
                           return flash1_instance(problem).start(
                               parameters, problem.batch * problem.heads, stream);
                         });
}

problem::Status supports_standard(const Problem& problem) {
  const problem::Status status = check_standard(problem);
  if (status != TILEWISE_OK) return status;
  if (!may_ask_for_longest(problem)) {
    return fail(TILEWISE_UNSUPPORTED,
                "batch_invariant of a packed batch: rows of S are as long as the longest sequence");
  }
  return TILEWISE_OK;
}

problem::Status prepare_standard(const Problem& problem) {
  return load_kernels(problem.device_index,
                      {standard_instance(problem).load, sm80::load_common_kernels, load_softmax},
                      "loading cuda_standard");
}

std::int64_t workspace_of_standard(const Problem& problem) {
  return StandardWorkspace(problem).bytes();
}

double predicted_traffic_of_standard(const Problem& problem) {
  return predicted_standard_traffic(problem, tiles_of(standard_tile(problem)));
}

problem::Status run_standard(const Problem& problem, const problem::RunContext& context) {
  if (problem.heads == 0 || problem.q_rows == 0) return TILEWISE_OK;
  const StandardInstance& instance = standard_instance(problem);
  const TileSizes sizes = tiles_of(standard_tile(problem));
  const StandardWorkspace offsets(problem);
  Parameters parameters = {};
  parameters.tiles = sm80::parameters_for(problem, sizes.q_rows, true, offsets, context.workspace);
  parameters.scores = at<float>(context.workspace, offsets.scores);
  parameters.probs = at<std::uint16_t>(context.workspace, offsets.probs);
  parameters.score_stride = score_stride(problem);
  count_standard_traffic(problem, sizes, context.traffic);
  return sm80::run_tiles(
      parameters.tiles, sizes.q_rows, context.executor->stream, "starting cuda_standard",
      [&](std::int64_t blocks, cudaStream_t stream) {
        cudaError_t error = instance.start_scores(parameters, blocks, stream);
        if (error == cudaSuccess) error = start_softmax(parameters, sizes.k_rows, stream);
        return error == cudaSuccess ? instance.start_values(parameters, blocks, stream) : error;
      });
}

}  // namespace tilewise::cuda::ladder
