// Calls of a communicator, with messages for its failures.
#pragma once

#include <tilewise/tilewise_distributed.h>

#include <cstdint>

#include "problem/problem.h"
#include "problem/status.h"

namespace tilewise::distributed {

using problem::Status;

Status check_communicator(const tilewise_communicator* communicator);

// Checks the time limit, the peers and the sizes of an exchange among `size` ranks.
Status check_messages(const tilewise_exchange& request, std::int32_t size);

// Exchanges messages; nothing is called if there are none. A failure's message names the rank that
// caused it, and the activity: "ring attention, step 2 of 8".
Status exchange(const tilewise_communicator& communicator, const tilewise_exchange& request,
                const char* activity);

// Exchanges messages in device memory, in the order of a stream: start() and finish() of the
// communicator.
Status start_exchange(const tilewise_communicator& communicator, const tilewise_exchange& request,
                      void* stream, const char* activity);
Status finish_exchange(const tilewise_communicator& communicator, const tilewise_exchange& request,
                       void* stream, const char* activity);

// Checks that the engine takes the memory of the tensors' device.
Status check_device(const tilewise_communicator& communicator, const problem::Problem& problem);

}  // namespace tilewise::distributed
