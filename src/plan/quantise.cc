#include "plan/quantise.h"

#include <cstdlib>

#include "cpu/quantise.h"
#include "cuda/fp8/quantise.h"
#include "math/integer.h"
#include "plan/plan.h"
#include "plan/pool.h"
#include "problem/arena.h"
#include "problem/quantisation.h"
#include "problem/tensor_checks.h"

namespace tilewise::plan {

problem::Status quantise(const tilewise_quantisation& request, const tilewise_executor* executor) {
  if (executor != nullptr) TILEWISE_RETURN_IF_ERROR(check_executor(*executor));
  problem::Quantisation task;
  TILEWISE_RETURN_IF_ERROR(problem::make_quantisation(request, &task));
  if (task.device == TILEWISE_CUDA)
    return cuda::quantise(task, executor != nullptr ? executor->stream : nullptr);
  Options options;
  options.max_concurrency = executor != nullptr ? executor->max_concurrency : 0;
  problem::Machine machine;
  TILEWISE_RETURN_IF_ERROR(resolve_machine(options, &machine));
  const cpu::TargetQuantise& functions = cpu::quantise_for(machine.cpu_target);
  const std::int64_t bytes = functions.workspace_bytes(task, machine.concurrency);
  constexpr std::size_t kAlignment = problem::kWorkspaceAlignment;
  void* const workspace =
      bytes < 0 ? nullptr
                : std::aligned_alloc(kAlignment,
                                     math::round_up(static_cast<std::size_t>(bytes), kAlignment));
  if (workspace == nullptr) {
    return problem::fail(TILEWISE_NO_MEMORY, "quantise: no memory for a workspace of %lld bytes",
                         problem::printable(bytes));
  }
  const tilewise_executor threads = executor != nullptr ? *executor : default_pool()->executor();
  problem::RunContext context = {workspace, &threads, machine.concurrency, 0};
  functions.run(task, context);
  std::free(workspace);
  return TILEWISE_OK;
}

}  // namespace tilewise::plan
