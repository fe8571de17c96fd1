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

}  // namespace tilewise::distributed
