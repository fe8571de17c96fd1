// Runs an append to a cache: checks it, and chooses the device.
#pragma once

#include <tilewise/tilewise_append.h>

#include "problem/status.h"

namespace tilewise::plan {

// executor: nullptr is the default pool, or the default stream
problem::Status append(const tilewise_append& request, const tilewise_executor* executor);

}  // namespace tilewise::plan
