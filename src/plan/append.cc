#include "plan/append.h"

#include "cuda/kv_cache/append.h"
#include "math/integer.h"
#include "plan/plan.h"
#include "plan/pool.h"
#include "problem/append_row.h"
#include "problem/tensor_checks.h"

namespace tilewise::plan {
namespace {

// Work items are blocks of rows: a row alone is too little for a thread.
constexpr std::int64_t kItemRows = 64;

template <class Element>
void append_item(void* context, std::int64_t item) {
  const problem::Append& task = *static_cast<const problem::Append*>(context);
  const std::int64_t end = math::min((item + 1) * kItemRows, task.rows());
  for (std::int64_t row = item * kItemRows; row < end; ++row)
    problem::append_row<Element>(task, row, 0, 1);
}

}  // namespace

problem::Status append(const tilewise_append& request, const tilewise_executor* executor) {
  if (executor != nullptr) TILEWISE_RETURN_IF_ERROR(check_executor(*executor));
  problem::Append task;
  TILEWISE_RETURN_IF_ERROR(problem::make_append(request, &task));
  if (task.rows() == 0) return TILEWISE_OK;
  if (task.device == TILEWISE_CUDA)
    return cuda::append(task, executor != nullptr ? executor->stream : nullptr);
  const tilewise_executor threads = executor != nullptr ? *executor : default_pool()->executor();
  const auto function = task.dtype == TILEWISE_FP32   ? append_item<float>
                        : task.dtype == TILEWISE_BF16 ? append_item<math::BFloat16>
                                                      : append_item<math::Float16>;
  threads.parallel_for(threads.self, math::ceil_div(task.rows(), kItemRows), function, &task);
  return TILEWISE_OK;
}

}  // namespace tilewise::plan
