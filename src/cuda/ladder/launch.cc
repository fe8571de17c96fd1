#include "cuda/ladder/launch.h"

#include <cstddef>

#include "cuda/host/instances.h"
#include "cuda/host/traffic.h"
#include "cuda/ladder/kernel_table.h"
#include "cuda/ladder/parameters.h"
#include "cuda/sm80/host.h"
#include "math/integer.h"

namespace tilewise::cuda::ladder {

namespace {

using problem::Checked;
using problem::fail;

int row_for(const Problem& problem, bool) {
  return tile_row(math::max(problem.head_dim, problem.value_dim), sm80::shared_bytes(problem));
}

const TileRow& flash1_tile(const Problem& problem) {
  return kFlash1Kernels[row_for(problem, false)];
}
const TileRow& standard_tile(const Problem& problem) {
  return kStandardKernels[row_for(problem, false)];
}
using Start = cudaError_t (*)(const Parameters& parameters, std::int64_t blocks,
                              cudaStream_t stream);
struct Flash1Instance {
  Load load;
  Start start;
};
struct StandardInstance {
  Load load;
  Start start_scores;
  Start start_values;
};

// The instance of a table for the problem.
template <class Instances>
const auto& of_problem(const Instances& instances, const Problem& problem) {
  const auto row = static_cast<std::size_t>(row_for(problem, false));
  return instances[row][problem.dtype == TILEWISE_FP16 ? 1 : 0];
}
const Flash1Instance& flash1_instance(const Problem& problem) {
  static constexpr auto kInstances = typed_instances_of<kKernelRows>([]<int kRow, bool kFp16>() {
    using Kernel = Flash1Kernel<kRow, kFp16>;
    return Flash1Instance{Kernel::load, Kernel::start};
  });
  return of_problem(kInstances, problem);
}
const StandardInstance& standard_instance(const Problem& problem) {
  static constexpr auto kInstances = typed_instances_of<kKernelRows>([]<int kRow, bool kFp16>() {
    using Kernel = StandardKernel<kRow, kFp16>;
    return StandardInstance{Kernel::load, Kernel::start_scores, Kernel::start_values};
  });
  return of_problem(kInstances, problem);
}
int flash1_q_tile(const Problem& problem, bool) {
  return flash1_tile(problem).config(false).q_tile();
}
int standard_q_tile(const Problem& problem, bool) {
  return standard_tile(problem).config(false).q_tile();
}
TileSizes tiles_of(const TileRow& row) { return {row.config(false).q_tile(), row.k_tile}; }

problem::Status check_problem(const Problem& problem, int (*q_tile_for)(const Problem&, bool)) {
  const problem::Status device = check_device(problem);
  if (device != TILEWISE_OK) return device;
  if (problem.dtype != TILEWISE_BF16 && problem.dtype != TILEWISE_FP16)
    return fail(TILEWISE_UNSUPPORTED, "q, k and v are not bf16 or fp16");
  const problem::Status pages = check_no_pages(problem);
  if (pages != TILEWISE_OK) return pages;
  return sm80::check_tiles(problem, kMaxColumns, sm80::kSmall, row_for, q_tile_for);
}

// The number of rows of lse: (B, H, Sq), packed (H, T).
Checked rows_of(const Problem& problem) {
  return Checked{problem.q_packed ? 1 : problem.batch} * Checked{problem.heads} *
         Checked{problem.q_rows};
}
std::int64_t score_stride(const Problem& problem) {
  const std::int64_t k_tile = standard_tile(problem).k_tile;
  return math::ceil_div(problem.max_k, k_tile) * k_tile;
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

template <class T>
T* at(void* workspace, std::int64_t byte) {
  return reinterpret_cast<T*>(static_cast<std::byte*>(workspace) + byte);
}

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
  const problem::Status status = check_problem(problem, standard_q_tile);
  if (status != TILEWISE_OK) return status;
  if (!may_ask_for_longest(problem)) {
    return fail(TILEWISE_UNSUPPORTED,
                "batch_invariant of a packed batch: rows of S are as long as the longest sequence");
  }
  const Checked rows = rows_of(problem);
  if (rows.valid && rows.value <= kMaxScoreRows) return TILEWISE_OK;
  return fail(TILEWISE_UNSUPPORTED, "S has more than %lld rows",
              static_cast<long long>(kMaxScoreRows));
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
