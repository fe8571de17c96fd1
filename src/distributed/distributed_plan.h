// The plan of an operation on one rank, by its schedule: that of a ring, or a token plan (magi/).
#pragma once

#include <variant>

#include "distributed/magi/attention.h"
#include "distributed/ring_run.h"

namespace tilewise::distributed {

struct DistributedOptions {
  RingOptions ring;  // with a token plan, the lengths are its own or 0
  const magi::Plan* token_plan = nullptr;
};

struct DistributedPlan {
  std::variant<RingPlan, magi::Attention> plan;

  std::int64_t workspace_bytes() const;
  double timeout_seconds() const;
};

// Makes the plan of a rank. It does not communicate, and keeps no reference to the token plan.
Status make_distributed_plan(problem::Operation operation, const tilewise_problem& request,
                             const DistributedOptions& options, std::int32_t rank,
                             std::int32_t size, DistributedPlan* plan);

void describe_distributed_plan(const DistributedPlan& plan, tilewise_distributed_info* info);

// Runs the plan, by run_ring() or magi::run_attention().
Status run_distributed_plan(const DistributedPlan& plan, const tilewise_communicator& communicator,
                            const tilewise_problem& request, const RingRunOptions& options);

}  // namespace tilewise::distributed
