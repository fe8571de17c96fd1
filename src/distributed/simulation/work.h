// The pairs, rows and messages of the ranks of a schedule, step by step: the input of the timeline.
#pragma once

#include "distributed/magi/plan.h"
#include "distributed/schedule.h"

namespace tilewise::distributed::simulation {

inline constexpr Schedule kSchedules[] = {Schedule::kContiguous, Schedule::kZigzag,
                                          Schedule::kStriped, Schedule::kBalanced};

// A step of a rank: the keys arrive, and its queries use them. Nothing arrives in step 0.
struct Step {
  std::int64_t area = 0;           // visible pairs, as in magi::Mask
  std::int64_t received_rows = 0;  // of keys, and as many of values
  std::int64_t sent_rows = 0;
  std::int64_t messages = 0;  // the larger of those received and those sent
};

struct Work {
  Schedule schedule = Schedule::kBalanced;
  std::int64_t ranks = 1;
  std::int64_t steps = 1;
  std::vector<Step> table;           // (ranks, steps)
  std::vector<std::int64_t> q_rows;  // of each rank
  std::int64_t area = 0;             // of the mask

  Step& at(std::int64_t rank, std::int64_t step) {
    return table[static_cast<std::size_t>(rank * steps + step)];
  }
  const Step& at(std::int64_t rank, std::int64_t step) const {
    return table[static_cast<std::size_t>(rank * steps + step)];
  }
  // The sum of a member over the steps of a rank.
  std::int64_t sum(std::int64_t rank, std::int64_t Step::*member) const;
};

// The work of a plan, the balanced schedule: its stages are the steps.
Work magi_work(const magi::Plan& plan);

// The work of Ring Attention (arXiv 2310.01889) with contiguous shards, with the zigzag order (rank
// r has the pieces r and 2R - 1 - r of 2R), or striped (arXiv 2311.09431: rank r has the rows r, r
// + R,
// ...). In step s, rank r uses the keys of rank (r - s) mod R, which have come from rank r - 1;
// keys that no later rank sees go no further. Errors: more than 2^28 pieces of bands, whose areas
// would take too long.
problem::Status ring_work(const magi::Mask& mask, Schedule schedule, std::int64_t ranks,
                          Work* work);

}  // namespace tilewise::distributed::simulation
