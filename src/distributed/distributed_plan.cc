#include "distributed/distributed_plan.h"

#include "problem/tensor_checks.h"

namespace tilewise::distributed {
namespace {

using problem::fail;
using problem::printable;

Status check_length(const char* name, std::int64_t length, std::int64_t planned) {
  if (length == 0 || length == planned) return TILEWISE_OK;
  return fail(TILEWISE_INVALID_ARGUMENT, "%s: is %lld, must be 0 or that of the token plan, %lld",
              name, printable(length), printable(planned));
}

// Checks that schedule and token plan agree with each other and with the group.
Status check_token_plan(const DistributedOptions& options, std::int32_t size) {
  const Schedule schedule = options.ring.schedule;
  if (schedule < Schedule::kAutomatic || schedule > Schedule::kBalanced) {
    return fail(
        TILEWISE_INVALID_ARGUMENT,
        "schedule: is %d, must be 0 (automatic), 1 (contiguous), 2 (zigzag), 3 (striped) or "
        "4 (balanced)",
        static_cast<int>(schedule));
  }
  if (options.token_plan == nullptr) {
    if (schedule != Schedule::kBalanced) return TILEWISE_OK;
    return fail(TILEWISE_INVALID_ARGUMENT,
                "token_plan: is NULL, but the balanced schedule needs one");
  }
  if (schedule != Schedule::kAutomatic && schedule != Schedule::kBalanced) {
    return fail(TILEWISE_INVALID_ARGUMENT,
                "token_plan: given with the schedule %s, must be automatic or balanced",
                schedule_name(schedule));
  }
  const magi::Plan& plan = *options.token_plan;
  if (plan.ranks != size) {
    return fail(TILEWISE_INVALID_ARGUMENT, "token_plan: is for %lld ranks, the communicator has %d",
                printable(plan.ranks), size);
  }
  TILEWISE_RETURN_IF_ERROR(check_length("q_len", options.ring.lengths.q, plan.mask.q_len));
  return check_length("k_len", options.ring.lengths.k, plan.mask.k_len);
}

}  // namespace

std::int64_t DistributedPlan::workspace_bytes() const {
  return std::visit([](const auto& made) { return made.memory.bytes; }, plan);
}

double DistributedPlan::timeout_seconds() const {
  return std::visit([](const auto& made) { return made.options.timeout_seconds; }, plan);
}

Status make_distributed_plan(problem::Operation operation, const tilewise_problem& request,
                             const DistributedOptions& options, std::int32_t rank,
                             std::int32_t size, DistributedPlan* plan) {
  TILEWISE_RETURN_IF_ERROR(check_token_plan(options, size));
  if (options.token_plan == nullptr) {
    return make_ring_plan(operation, request, options.ring, rank, size,
                          &plan->plan.emplace<RingPlan>());
  }
  return magi::make_attention(operation, request, *options.token_plan, rank,
                              {options.ring.timeout_seconds, options.ring.kernels},
                              &plan->plan.emplace<magi::Attention>());
}

void describe_distributed_plan(const DistributedPlan& plan, tilewise_distributed_info* info) {
  if (const auto* const ring = std::get_if<RingPlan>(&plan.plan)) {
    describe_ring_plan(*ring, info);
  } else {
    magi::describe_attention(std::get<magi::Attention>(plan.plan), info);
  }
}

Status run_distributed_plan(const DistributedPlan& plan, const tilewise_communicator& communicator,
                            const tilewise_problem& request, const RingRunOptions& options) {
  if (const auto* const ring = std::get_if<RingPlan>(&plan.plan))
    return run_ring(*ring, communicator, request, options);
  return magi::run_attention(std::get<magi::Attention>(plan.plan), communicator, request,
                             {options.workspace, options.workspace_bytes, options.executor});
}

}  // namespace tilewise::distributed
