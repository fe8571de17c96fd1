// Calls of a communicator, with messages for its failures.
#pragma once

#include <tilewise/tilewise_distributed.h>

#include "problem/status.h"

namespace tilewise::distributed {

using problem::Status;

Status check_communicator(const tilewise_communicator* communicator);

// Exchanges messages; nothing is called if there are none. A failure's message names the rank that
// caused it, and what was going on: "ring attention, step 2 of 8".
Status exchange(const tilewise_communicator& communicator, const tilewise_exchange& request,
                const char* activity);

}  // namespace tilewise::distributed
