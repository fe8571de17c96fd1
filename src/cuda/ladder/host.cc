#include "cuda/ladder/host.h"

#include "math/integer.h"

namespace tilewise::cuda::ladder {

using problem::Checked;
using problem::fail;

int row_for(const Problem& problem, bool) {
  return tile_row(math::max(problem.head_dim, problem.value_dim), sm80::shared_bytes(problem));
}

const TileRow& standard_tile(const Problem& problem) {
  return kStandardKernels[row_for(problem, false)];
}

const StandardInstance& standard_instance(const Problem& problem) {
  static constexpr auto kInstances = typed_instances_of<kKernelRows>([]<int kRow, bool kFp16>() {
    using Kernel = StandardKernel<kRow, kFp16>;
    return StandardInstance{Kernel::load, Kernel::start_scores, Kernel::start_values};
  });
  return of_problem(kInstances, problem);
}

problem::Status check_problem(const Problem& problem, int (*q_tile_for)(const Problem&, bool)) {
  const problem::Status device = check_device(problem);
  if (device != TILEWISE_OK) return device;
  if (problem.dtype != TILEWISE_BF16 && problem.dtype != TILEWISE_FP16)
    return fail(TILEWISE_UNSUPPORTED, "q, k and v are not bf16 or fp16");
  const problem::Status pages = check_no_pages(problem);
  if (pages != TILEWISE_OK) return pages;
  return sm80::check_tiles(problem, kMaxColumns, sm80::kSmall, row_for, q_tile_for);
}

problem::Status check_standard(const Problem& problem) {
  const problem::Status status = check_problem(
      problem, [](const Problem& own, bool) { return standard_tile(own).config(false).q_tile(); });
  if (status != TILEWISE_OK) return status;
  const Checked rows = rows_of(problem);
  if (rows.valid && rows.value <= kMaxScoreRows) return TILEWISE_OK;
  return fail(TILEWISE_UNSUPPORTED, "S has more than %lld rows",
              static_cast<long long>(kMaxScoreRows));
}

Checked rows_of(const Problem& problem) {
  return Checked{problem.q_packed ? 1 : problem.batch} * Checked{problem.heads} *
         Checked{problem.q_rows};
}

std::int64_t score_stride(const Problem& problem) {
  const std::int64_t k_tile = standard_tile(problem).k_tile;
  return math::ceil_div(problem.max_k, k_tile) * k_tile;
}

}  // namespace tilewise::cuda::ladder
