// The token plan of the C interface.
#pragma once

#include <tilewise/tilewise_distributed.h>

#include <vector>

#include "distributed/magi/plan.h"

struct tilewise_token_plan {
  using Ranges = std::vector<std::vector<tilewise_token_range>>;

  tilewise::distributed::magi::Plan plan;
  Ranges ranges[2];                     // by the side, of each rank
  std::vector<std::int64_t> sent_rows;  // by each rank
};
