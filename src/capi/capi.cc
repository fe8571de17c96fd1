// The C interface: it checks raw pointers and struct sizes, and lets no exception through.
#include <tilewise/tilewise.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "capi/structs.h"
#include "cpu/targets.h"
#include "plan/description.h"
#include "plan/plan.h"
#include "plan/pool.h"
#include "plan/registry.h"
#include "plan/thread_count.h"
#include "problem/validate.h"

using tilewise::capi::check_operation;
using tilewise::capi::check_struct;
using tilewise::plan::kMostThreads;
using tilewise::plan::Pool;
using tilewise::problem::fail;
using tilewise::problem::Kernel;
using tilewise::problem::Operation;

struct tilewise_pool {
  explicit tilewise_pool(std::int32_t threads) : pool(threads) {}
  Pool pool;
};
struct tilewise_plan {
  tilewise::plan::Plan plan;
};

namespace {

constexpr std::size_t kLargestTail =
    4096;  // the struct of a newer header may be larger than ours by this much

tilewise_status run_once(Operation operation, const tilewise_problem* problem,
                         const tilewise_executor* executor) {
  if (const tilewise_status status = check_struct("problem", problem); status != TILEWISE_OK)
    return status;
  return tilewise::plan::run_once(operation, *problem, executor);
}

const Kernel* kernel_at(std::int32_t operation, std::int32_t index) {
  if (operation != TILEWISE_FORWARD && operation != TILEWISE_BACKWARD) return nullptr;
  const auto list = tilewise::plan::kernels(static_cast<Operation>(operation));
  if (index < 0 || static_cast<std::size_t>(index) >= list.size()) return nullptr;
  return list[static_cast<std::size_t>(index)];
}

}  // namespace

namespace tilewise::capi {

Status check_struct(const char* name, const void* pointer, std::size_t given, std::size_t known) {
  if (given < known || given - known > kLargestTail) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "%s: struct_size is %zu, must be %zu; use tilewise_%s_init()", name, given, known,
                name);
  }
  const unsigned char* const bytes = static_cast<const unsigned char*>(pointer);
  for (std::size_t i = known; i < given; ++i) {
    if (bytes[i] != 0) {
      return fail(TILEWISE_UNSUPPORTED,
                  "%s: byte %zu is set, which this version (%s) does not know", name, i,
                  tilewise_version());
    }
  }
  return TILEWISE_OK;
}

Status check_operation(std::int32_t operation) {
  if (operation == TILEWISE_FORWARD || operation == TILEWISE_BACKWARD) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT, "operation: is %d, must be 0 (forward) or 1 (backward)",
              operation);
}

}  // namespace tilewise::capi

const char* tilewise_status_name(tilewise_status status) {
  switch (status) {
    case TILEWISE_OK:
      return "OK";
    case TILEWISE_INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case TILEWISE_UNSUPPORTED:
      return "UNSUPPORTED";
    case TILEWISE_NO_MEMORY:
      return "NO_MEMORY";
    case TILEWISE_DEVICE_ERROR:
      return "DEVICE_ERROR";
    case TILEWISE_INTERNAL_ERROR:
      return "INTERNAL_ERROR";
    case TILEWISE_TIMEOUT:
      return "TIMEOUT";
    case TILEWISE_REMOTE_ERROR:
      return "REMOTE_ERROR";
    default:
      return "unknown status";
  }
}

const char* tilewise_last_error(void) { return tilewise::problem::message(); }

tilewise_tensor tilewise_contiguous(void* data, std::int32_t dtype, std::int32_t rank,
                                    const std::int64_t* shape) {
  tilewise_tensor tensor;
  std::memset(&tensor, 0, sizeof(tensor));
  if (rank < 1 || rank > TILEWISE_MAX_RANK || shape == nullptr) return tensor;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = rank;
  std::int64_t stride = 1;
  for (std::int32_t d = rank - 1; d >= 0; --d) {
    tensor.shape[d] = shape[d];
    tensor.strides[d] = stride;
    // An overflow is stored as a stride that no buffer can have, so that validation reports it.
    if (__builtin_mul_overflow(stride, shape[d] > 0 ? shape[d] : 1, &stride)) stride = INT64_MAX;
  }
  return tensor;
}

void tilewise_problem_init(tilewise_problem* problem) {
  if (problem == nullptr) return;
  std::memset(problem, 0, sizeof(*problem));
  problem->struct_size = sizeof(*problem);
  problem->window_left = -1;
  problem->window_right = -1;
  problem->softmax_scale = TILEWISE_DEFAULT_SCALE;
  problem->max_seqlen_q = -1;
  problem->max_seqlen_k = -1;
}

void tilewise_executor_init(tilewise_executor* executor) {
  if (executor == nullptr) return;
  std::memset(executor, 0, sizeof(*executor));
  executor->struct_size = sizeof(*executor);
  executor->max_concurrency = 1;
  executor->parallel_for = [](void*, std::int64_t n, void (*fn)(void*, std::int64_t),
                              void* context) {
    for (std::int64_t item = 0; item < n; ++item) fn(context, item);
  };
}

tilewise_status tilewise_pool_create(std::int32_t threads, tilewise_pool** pool) {
  if (pool == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "pool: is NULL");
  if (threads < 0 || threads > kMostThreads) {
    return fail(TILEWISE_INVALID_ARGUMENT, "threads: is %d, must be 0 (all) to %d", threads,
                kMostThreads);
  }
  tilewise_pool* const created =
      new (std::nothrow) tilewise_pool(threads > 0 ? threads : tilewise::plan::usable_cpus());
  if (created == nullptr) return fail(TILEWISE_NO_MEMORY, "no memory for a thread pool");
  *pool = created;
  return TILEWISE_OK;
}

void tilewise_pool_destroy(tilewise_pool* pool) { delete pool; }

tilewise_status tilewise_pool_executor(tilewise_pool* pool, tilewise_executor* executor) {
  if (pool == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "pool: is NULL");
  if (executor == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "executor: is NULL");
  *executor = pool->pool.executor();
  return TILEWISE_OK;
}

tilewise_status tilewise_shutdown(void) { return tilewise::plan::stop_pools(); }

tilewise_status tilewise_forward(const tilewise_problem* problem,
                                 const tilewise_executor* executor) {
  return run_once(Operation::kForward, problem, executor);
}

tilewise_status tilewise_backward(const tilewise_problem* problem,
                                  const tilewise_executor* executor) {
  return run_once(Operation::kBackward, problem, executor);
}

void tilewise_plan_options_init(tilewise_plan_options* options) {
  if (options == nullptr) return;
  std::memset(options, 0, sizeof(*options));
  options->struct_size = sizeof(*options);
}

tilewise_status tilewise_plan_create(std::int32_t operation, const tilewise_problem* problem,
                                     const tilewise_plan_options* options, tilewise_plan** plan) {
  if (plan == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "plan: is NULL");
  if (const tilewise_status status = check_operation(operation); status != TILEWISE_OK)
    return status;
  if (const tilewise_status status = check_struct("problem", problem); status != TILEWISE_OK)
    return status;
  tilewise::plan::Options chosen;
  if (options != nullptr) {
    if (const tilewise_status status = check_struct("plan_options", options); status != TILEWISE_OK)
      return status;
    chosen = {options->kernel, options->cpu_target, options->max_concurrency};
  }
  tilewise_plan* const created = new (std::nothrow) tilewise_plan;
  if (created == nullptr) return fail(TILEWISE_NO_MEMORY, "no memory for a plan");
  const tilewise_status status = tilewise::plan::make_plan(static_cast<Operation>(operation),
                                                           *problem, chosen, &created->plan);
  if (status != TILEWISE_OK) {
    delete created;
    return status;
  }
  *plan = created;
  return TILEWISE_OK;
}

void tilewise_plan_destroy(tilewise_plan* plan) { delete plan; }

tilewise_status tilewise_plan_workspace(const tilewise_plan* plan, std::size_t* bytes,
                                        std::size_t* alignment) {
  if (plan == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "plan: is NULL");
  if (bytes != nullptr) *bytes = static_cast<std::size_t>(plan->plan.workspace_bytes);
  if (alignment != nullptr) *alignment = tilewise::problem::kWorkspaceAlignment;
  return TILEWISE_OK;
}

const char* tilewise_plan_kernel(const tilewise_plan* plan) {
  return plan != nullptr ? plan->plan.kernel->name : "";
}

const char* tilewise_plan_reason(const tilewise_plan* plan) {
  return plan != nullptr ? plan->plan.reason : "";
}

tilewise_status tilewise_plan_run(const tilewise_plan* plan, const tilewise_problem* problem,
                                  void* workspace, std::size_t workspace_bytes,
                                  const tilewise_executor* executor) {
  if (plan == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "plan: is NULL");
  if (const tilewise_status status = check_struct("problem", problem); status != TILEWISE_OK)
    return status;
  tilewise::plan::RunOptions options;
  options.workspace = workspace;
  options.workspace_bytes = workspace_bytes;
  options.executor = executor;
  return tilewise::plan::run_plan(plan->plan, *problem, options);
}

std::int32_t tilewise_kernel_count(std::int32_t operation) {
  std::int32_t count = 0;
  while (kernel_at(operation, count) != nullptr) ++count;
  return count;
}

const char* tilewise_kernel_name(std::int32_t operation, std::int32_t index) {
  const Kernel* const kernel = kernel_at(operation, index);
  return kernel != nullptr ? kernel->name : nullptr;
}

const char* tilewise_kernel_description(std::int32_t operation, std::int32_t index) {
  const Kernel* const kernel = kernel_at(operation, index);
  return kernel != nullptr ? kernel->description : nullptr;
}

tilewise_status tilewise_kernel_supports(std::int32_t operation, const char* kernel,
                                         const tilewise_problem* problem) {
  if (kernel == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "kernel: is NULL");
  if (const tilewise_status status = check_operation(operation); status != TILEWISE_OK)
    return status;
  if (const tilewise_status status = check_struct("problem", problem); status != TILEWISE_OK)
    return status;
  tilewise::plan::Options options;
  options.kernel = kernel;
  tilewise::plan::Plan plan;
  return tilewise::plan::make_plan(static_cast<Operation>(operation), *problem, options, &plan);
}

std::int32_t tilewise_cpu_target_count(void) {
  std::int32_t count = 0;
  while (tilewise::cpu::kTargets[count].name != nullptr) ++count;
  return count;
}

const char* tilewise_cpu_target_name(std::int32_t index) {
  return index >= 0 && index < tilewise_cpu_target_count() ? tilewise::cpu::kTargets[index].name
                                                           : nullptr;
}

std::int32_t tilewise_cpu_target_available(std::int32_t index) {
  return index >= 0 && index < tilewise_cpu_target_count() &&
                 tilewise::cpu::kTargets[index].available()
             ? 1
             : 0;
}

#define TILEWISE_TEXT_OF(number) #number
#define TILEWISE_TEXT(number) TILEWISE_TEXT_OF(number)

const char* tilewise_version(void) {
  return TILEWISE_TEXT(TILEWISE_VERSION_MAJOR) "." TILEWISE_TEXT(
      TILEWISE_VERSION_MINOR) "." TILEWISE_TEXT(TILEWISE_VERSION_PATCH);
}

std::size_t tilewise_info(char* text, std::size_t size) {
  try {
    const std::string whole = tilewise::plan::description(tilewise::plan::this_host());
    if (text != nullptr && size > 0) {
      const std::size_t copied = std::min(size - 1, whole.size());
      std::memcpy(text, whole.data(), copied);
      text[copied] = '\0';
    }
    return whole.size();
  } catch (...) {  // memory ran out
    if (text != nullptr && size > 0) text[0] = '\0';
    return 0;
  }
}
