// The C interface of distributed attention.
#include <tilewise/tilewise_distributed.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "capi/exceptions.h"
#include "capi/structs.h"
#include "capi/token_plan.h"
#include "cuda/host/runtime.h"
#include "distributed/communicator.h"
#include "distributed/distributed_plan.h"
#include "distributed/local_group.h"
#include "problem/tensor_checks.h"

using tilewise::capi::check_operation;
using tilewise::capi::check_struct;
using tilewise::capi::no_memory;
using tilewise::capi::without_exceptions;
using tilewise::distributed::DistributedOptions;
using tilewise::distributed::DistributedPlan;
using tilewise::distributed::LocalGroup;
using tilewise::distributed::RingOptions;
using tilewise::distributed::Schedule;
using tilewise::problem::fail;
using tilewise::problem::kWorkspaceAlignment;
using tilewise::problem::Operation;
using tilewise::problem::Status;

struct tilewise_local_group {
  explicit tilewise_local_group(std::int32_t size) : group(size) {}
  LocalGroup group;
};
struct tilewise_distributed_plan {
  DistributedPlan plan;
  tilewise_communicator communicator;
};

namespace {

constexpr std::int32_t kMostRanks = 4096;

DistributedOptions read_options(const tilewise_distributed_options& options) {
  DistributedOptions result;
  RingOptions& ring = result.ring;
  ring.lengths = {options.q_len, options.k_len};
  ring.schedule = static_cast<Schedule>(options.schedule);
  ring.timeout_seconds = options.timeout_seconds;
  ring.kernels = {options.kernel, options.cpu_target, options.max_concurrency};
  if (options.token_plan != nullptr) result.token_plan = &options.token_plan->plan;
  return result;
}

Status check_size(std::int32_t size) {
  if (size >= 1) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT, "size: is %d, must be >= 1", size);
}

Status make_plan(Operation operation, const tilewise_problem* problem,
                 const tilewise_distributed_options* options,
                 const tilewise_communicator& communicator, DistributedPlan* plan) {
  TILEWISE_RETURN_IF_ERROR(check_struct("problem", problem));
  TILEWISE_RETURN_IF_ERROR(check_struct("distributed_options", options));
  return without_exceptions("a distributed plan", [&] {
    return tilewise::distributed::make_distributed_plan(operation, *problem, read_options(*options),
                                                        communicator.rank, communicator.size, plan);
  });
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Workspace = std::unique_ptr<void, Free>;

// Keeps a workspace to the end of the process. A communicator fails once, so that there are few.
void keep(Workspace workspace) {
  static std::mutex mutex;
  static std::vector<void*>* kept = nullptr;
  void* const memory = workspace.release();
  const std::lock_guard<std::mutex> lock(mutex);
  try {  // a list, so that leak checkers find it
    if (kept == nullptr) kept = new std::vector<void*>;
    kept->push_back(memory);
  } catch (const std::bad_alloc&) {  // the memory remains all the same
  }
}

// True for a failure after which the engine may hold messages. A problem that the ranks refuse
// leaves none.
bool may_hold_messages(const tilewise_communicator& communicator, Status status) {
  return communicator.reads_after_failure != 0 && status != TILEWISE_OK &&
         status != TILEWISE_INVALID_ARGUMENT;
}

// Runs a plan on a workspace that is allocated and released in the order of the stream.
template <class Refuse>
Status run_on_device(const DistributedPlan& plan, const tilewise_problem& problem,
                     const tilewise_communicator& communicator, const tilewise_executor* executor,
                     const Refuse& refuse) {
  const std::int32_t device = problem.q.device_index;
  void* const stream = executor != nullptr ? executor->stream : nullptr;
  void* workspace = nullptr;
  const Status allocated =
      tilewise::cuda::allocate(device, plan.workspace_bytes(), stream, &workspace);
  if (allocated != TILEWISE_OK) return refuse(allocated);
  const auto bytes = static_cast<std::size_t>(plan.workspace_bytes());
  const Status status = tilewise::distributed::run_distributed_plan(plan, communicator, problem,
                                                                    {workspace, bytes, executor});
  tilewise::cuda::release(device, workspace, stream);
  return status;
}

Status run_once(Operation operation, const tilewise_problem* problem,
                const tilewise_distributed_options* options,
                const tilewise_communicator* communicator, const tilewise_executor* executor) {
  TILEWISE_RETURN_IF_ERROR(tilewise::distributed::check_communicator(communicator));
  const auto refuse = [&](Status status) {
    const bool known = options != nullptr && options->struct_size >= sizeof(*options) &&
                       options->timeout_seconds > 0;
    tilewise_distributed_options defaults;
    tilewise_distributed_options_init(&defaults);
    return tilewise::distributed::refuse(
        *communicator, known ? options->timeout_seconds : defaults.timeout_seconds, status);
  };
  tilewise_distributed_options chosen = {};
  if (options != nullptr && options->struct_size >= sizeof(chosen)) chosen = *options;
  if (executor != nullptr && chosen.max_concurrency == 0)
    chosen.max_concurrency = executor->max_concurrency;
  const std::unique_ptr<DistributedPlan> plan(new (std::nothrow) DistributedPlan);
  if (plan == nullptr) return refuse(no_memory("a distributed plan"));
  Status status = check_struct("distributed_options", options);
  if (status == TILEWISE_OK)
    status = make_plan(operation, problem, &chosen, *communicator, plan.get());
  if (status != TILEWISE_OK) return refuse(status);
  const auto bytes = static_cast<std::size_t>(plan->workspace_bytes());
  if (problem->q.device == TILEWISE_CUDA)
    return run_on_device(*plan, *problem, *communicator, executor, refuse);
  Workspace workspace(std::aligned_alloc(kWorkspaceAlignment, bytes));
  if (workspace == nullptr) return refuse(no_memory("a workspace"));
  status = tilewise::distributed::run_distributed_plan(*plan, *communicator, *problem,
                                                       {workspace.get(), bytes, executor});
  if (may_hold_messages(*communicator, status)) keep(std::move(workspace));
  return status;
}

}  // namespace

tilewise_status tilewise_fail(tilewise_status status, const char* message) {
  return fail(status, "%s", message != nullptr ? message : "");
}

tilewise_status tilewise_local_group_create(std::int32_t size, tilewise_local_group** group) {
  if (group == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "group: is NULL");
  if (size < 1 || size > kMostRanks) {
    return fail(TILEWISE_INVALID_ARGUMENT, "size: is %d, must be 1 to %d", size, kMostRanks);
  }
  return without_exceptions("a group of ranks", [&] {
    *group = new tilewise_local_group(size);
    return Status{TILEWISE_OK};
  });
}

tilewise_status tilewise_local_group_create_cuda(const std::int32_t* devices, std::int32_t size,
                                                 tilewise_local_group** group) {
  if (devices == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "devices: is NULL");
  for (std::int32_t rank = 0; rank < size; ++rank) {
    tilewise::cuda::DeviceInfo device;
    TILEWISE_RETURN_IF_ERROR(tilewise::cuda::find_device(devices[rank], &device));
  }
  tilewise_local_group* made = nullptr;
  TILEWISE_RETURN_IF_ERROR(tilewise_local_group_create(size, &made));
  std::unique_ptr<tilewise_local_group> owned(made);
  return without_exceptions("the streams of a group of ranks", [&] {
    TILEWISE_RETURN_IF_ERROR(made->group.use_devices({devices, static_cast<std::size_t>(size)}));
    *group = owned.release();
    return Status{TILEWISE_OK};
  });
}

void tilewise_local_group_destroy(tilewise_local_group* group) { delete group; }

tilewise_status tilewise_local_group_communicator(tilewise_local_group* group, std::int32_t rank,
                                                  tilewise_communicator* communicator) {
  if (group == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "group: is NULL");
  if (communicator == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "communicator: is NULL");
  if (rank < 0 || rank >= group->group.size()) {
    return fail(TILEWISE_INVALID_ARGUMENT, "rank: is %d, must be 0 to %d", rank,
                group->group.size() - 1);
  }
  *communicator = group->group.communicator(rank);
  return TILEWISE_OK;
}

tilewise_status tilewise_token_ranges(std::int32_t schedule, std::int64_t length, std::int32_t size,
                                      std::int32_t rank, tilewise_token_range* ranges,
                                      std::int32_t* count) {
  if (schedule < TILEWISE_SCHEDULE_CONTIGUOUS || schedule > TILEWISE_SCHEDULE_STRIPED) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "schedule: is %d, must be 1 (contiguous), 2 (zigzag) or 3 (striped)", schedule);
  }
  if (length < 0) {
    return fail(TILEWISE_INVALID_ARGUMENT, "length: is %lld, must be >= 0",
                tilewise::problem::printable(length));
  }
  TILEWISE_RETURN_IF_ERROR(check_size(size));
  if (rank < 0 || rank >= size)
    return fail(TILEWISE_INVALID_ARGUMENT, "rank: is %d, must be 0 to %d", rank, size - 1);
  if (ranges == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "ranges: is NULL");
  if (count == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "count: is NULL");
  const auto shard =
      tilewise::distributed::shard_of(static_cast<Schedule>(schedule), length, size, rank);
  *count = shard.count;
  for (std::int32_t r = 0; r < shard.count; ++r) {
    const auto& range = shard.ranges[static_cast<std::size_t>(r)];
    ranges[r] = {range.begin, range.end, range.stride};
  }
  return TILEWISE_OK;
}

void tilewise_distributed_options_init(tilewise_distributed_options* options) {
  if (options == nullptr) return;
  std::memset(options, 0, sizeof(*options));
  options->struct_size = sizeof(*options);
  options->timeout_seconds = 300;
}

tilewise_status tilewise_distributed_schedule(const tilewise_problem* problem,
                                              const tilewise_distributed_options* options,
                                              std::int32_t size, std::int32_t* schedule) {
  if (schedule == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "schedule: is NULL");
  TILEWISE_RETURN_IF_ERROR(check_struct("problem", problem));
  TILEWISE_RETURN_IF_ERROR(check_struct("distributed_options", options));
  TILEWISE_RETURN_IF_ERROR(check_size(size));
  return without_exceptions("a schedule", [&] {
    const RingOptions ring = read_options(*options).ring;
    tilewise::distributed::Whole whole;
    TILEWISE_RETURN_IF_ERROR(
        tilewise::distributed::make_whole(Operation::kForward, *problem, ring.lengths, &whole));
    *schedule = static_cast<std::int32_t>(
        tilewise::distributed::choose_schedule(whole, ring.lengths, size));
    return Status{TILEWISE_OK};
  });
}

tilewise_status tilewise_distributed_plan_create(std::int32_t operation,
                                                 const tilewise_problem* problem,
                                                 const tilewise_distributed_options* options,
                                                 const tilewise_communicator* communicator,
                                                 tilewise_distributed_plan** plan) {
  if (plan == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "plan: is NULL");
  TILEWISE_RETURN_IF_ERROR(check_operation(operation));
  TILEWISE_RETURN_IF_ERROR(tilewise::distributed::check_communicator(communicator));
  std::unique_ptr<tilewise_distributed_plan> made(new (std::nothrow) tilewise_distributed_plan);
  if (made == nullptr) return no_memory("a distributed plan");
  made->communicator = *communicator;
  TILEWISE_RETURN_IF_ERROR(
      make_plan(static_cast<Operation>(operation), problem, options, *communicator, &made->plan));
  *plan = made.release();
  return TILEWISE_OK;
}

void tilewise_distributed_plan_destroy(tilewise_distributed_plan* plan) { delete plan; }

tilewise_status tilewise_distributed_plan_workspace(const tilewise_distributed_plan* plan,
                                                    std::size_t* bytes, std::size_t* alignment) {
  if (plan == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "plan: is NULL");
  if (bytes != nullptr) *bytes = static_cast<std::size_t>(plan->plan.workspace_bytes());
  if (alignment != nullptr) *alignment = kWorkspaceAlignment;
  return TILEWISE_OK;
}

void tilewise_distributed_info_init(tilewise_distributed_info* info) {
  if (info == nullptr) return;
  std::memset(info, 0, sizeof(*info));
  info->struct_size = sizeof(*info);
}

tilewise_status tilewise_distributed_plan_info(const tilewise_distributed_plan* plan,
                                               tilewise_distributed_info* info) {
  if (plan == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "plan: is NULL");
  TILEWISE_RETURN_IF_ERROR(check_struct("distributed_info", info));
  tilewise::distributed::describe_distributed_plan(plan->plan, info);
  return TILEWISE_OK;
}

tilewise_status tilewise_distributed_plan_run(const tilewise_distributed_plan* plan,
                                              const tilewise_problem* problem, void* workspace,
                                              std::size_t workspace_bytes,
                                              const tilewise_executor* executor) {
  if (plan == nullptr) return fail(TILEWISE_INVALID_ARGUMENT, "plan: is NULL");
  const Status status = check_struct("problem", problem);
  if (status != TILEWISE_OK) {
    return tilewise::distributed::refuse(plan->communicator, plan->plan.timeout_seconds(), status);
  }
  return tilewise::distributed::run_distributed_plan(plan->plan, plan->communicator, *problem,
                                                     {workspace, workspace_bytes, executor});
}

tilewise_status tilewise_distributed_forward(const tilewise_problem* problem,
                                             const tilewise_distributed_options* options,
                                             const tilewise_communicator* communicator,
                                             const tilewise_executor* executor) {
  return run_once(Operation::kForward, problem, options, communicator, executor);
}

tilewise_status tilewise_distributed_backward(const tilewise_problem* problem,
                                              const tilewise_distributed_options* options,
                                              const tilewise_communicator* communicator,
                                              const tilewise_executor* executor) {
  return run_once(Operation::kBackward, problem, options, communicator, executor);
}
