// The request of a rank for attention with a plan: options that the plan excludes, and packed
// tensors.
#pragma once

#include <tilewise/tilewise.h>

#include <cstdint>

#include "problem/status.h"

namespace tilewise::distributed::magi {

// Sets `packed` to the request with packed tensors (T, H, D) and (H, T): dense ones have B = 1 and
// lose that dimension, in any layout. Refuses by name the options that a plan over `ranks` ranks
// does not support, and tensors that are not on the device of q.
problem::Status packed_request(const tilewise_problem& request, std::int64_t ranks,
                               tilewise_problem* packed);

}  // namespace tilewise::distributed::magi
