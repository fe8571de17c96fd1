// The stages of a plan on one rank: the rows of its keys and values that it sends to each rank, the
// rows that it receives, and the slices of them that its queries see. The backward pass sends dK
// and dV of the received rows back by the same lists.
#pragma once

#include <algorithm>

#include "distributed/magi/plan.h"

namespace tilewise::distributed::magi {

// Rows of keys, and the same rows of values, that go from their owner to a rank that needs them.
struct Message {
  std::int32_t peer;
  std::int64_t count;  // of rows
  Ranges rows;         // local: of the sender's shard, or of the receiver's stage
};

struct Stage {
  std::int64_t key_rows = 0;
  std::vector<Message> sends;  // by peer, ascending; so are the receives
  std::vector<Message> receives;
  std::vector<Slice> slices;  // of the rank's queries and the stage's keys, in local rows
};

struct RankPlan {
  std::int64_t q_rows = 0;
  std::int64_t k_rows = 0;
  std::vector<Stage> stages;             // stage 0: the rank's own keys, no messages
  std::int64_t most_stage_rows() const;  // of the stages from 1 on
};

RankPlan make_rank_plan(const Plan& plan, std::int64_t rank);

// Returns the part of the mask in `queries` and `keys` as slices of local rows: row n is the n-th
// of the ranges. A pair that several slices of the mask show may be shown by several slices here.
std::vector<Slice> local_slices(const Mask& mask, const Ranges& queries, const Ranges& keys);

// Returns the keys' owners: f(rank, begin, end) is called for each run of keys that one rank has.
template <class Function>
void for_each_owner(const Plan& plan, const Ranges& keys, Function f) {
  for (const Range& range : keys) {
    const auto after = std::upper_bound(plan.k_bounds.begin(), plan.k_bounds.end(), range.begin);
    auto chunk = static_cast<std::size_t>(after - plan.k_bounds.begin()) - 1;
    for (std::int64_t begin = range.begin; begin < range.end;) {
      const std::int32_t owner = plan.k_rank[chunk];
      while (chunk < plan.k_rank.size() && plan.k_rank[chunk] == owner &&
             plan.k_bounds[chunk] < range.end) {
        ++chunk;
      }
      const std::int64_t end = math::min(plan.k_bounds[chunk], range.end);
      f(owner, begin, end);
      begin = end;
    }
  }
}

}  // namespace tilewise::distributed::magi
