// Runs the plan of a ring.
#pragma once

#include "distributed/ring_plan.h"

namespace tilewise::distributed {

struct RingRunOptions {
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  const tilewise_executor* executor = nullptr;  // nullptr: the default pool
};

// Compares the problems of all ranks, then runs the plan. Allocates nothing; starts one thread for
// the communication if the communicator allows it.
Status run_ring(const RingPlan& plan, const tilewise_communicator& communicator,
                const tilewise_problem& request, const RingRunOptions& options);

// Takes part in the comparison with the status of this rank, which has refused its problem; the
// thread's message remains. Returns that status.
Status refuse(const tilewise_communicator& communicator, double timeout_seconds, Status status);

}  // namespace tilewise::distributed
