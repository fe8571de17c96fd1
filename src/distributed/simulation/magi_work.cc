#include <algorithm>

#include "distributed/magi/area.h"
#include "distributed/magi/rank_plan.h"
#include "distributed/simulation/work.h"

namespace tilewise::distributed::simulation {
namespace {

std::size_t index(std::int64_t number) { return static_cast<std::size_t>(number); }

std::int64_t area_of(const magi::Plan& plan, std::int64_t rank, const magi::Ranges& keys) {
  magi::Mask local = {
      magi::row_count(plan.queries[index(rank)]), magi::row_count(keys), plan.mask.heads, {}};
  for (const magi::Slice& slice : magi::local_slices(plan.mask, plan.queries[index(rank)], keys)) {
    const std::int64_t row[] = {slice.q_begin, slice.q_end, slice.k_begin, slice.k_end, slice.kind};
    math::Band band = math::slice_band(row, local.q_len, local.k_len, local.k_len);
    if (magi::trim(band)) local.bands.push_back({band, slice.head});
  }
  return magi::total_area(local);
}

}  // namespace

std::int64_t Work::sum(std::int64_t rank, std::int64_t Step::*member) const {
  std::int64_t total = 0;
  for (std::int64_t step = 0; step < steps; ++step) total += at(rank, step).*member;
  return total;
}

Work magi_work(const magi::Plan& plan) {
  Work work;
  work.ranks = plan.ranks;
  work.steps = plan.stages + 1;
  work.area = plan.area;
  work.table.resize(index(work.ranks * work.steps));
  for (const magi::Ranges& queries : plan.queries) work.q_rows.push_back(magi::row_count(queries));
  for (std::int64_t step = 0; step < work.steps; ++step) {
    std::vector<std::int64_t> sends(index(plan.ranks));  // messages
    std::vector<std::int64_t> last(index(plan.ranks), -1);
    for (std::int64_t rank = 0; rank < plan.ranks; ++rank) {
      const magi::Ranges keys = plan.stage_keys(rank, step);
      Step& own = work.at(rank, step);
      own.area = area_of(plan, rank, keys);
      if (step == 0) continue;
      magi::for_each_owner(plan, keys,
                           [&](std::int32_t owner, std::int64_t begin, std::int64_t end) {
                             own.received_rows += end - begin;
                             work.at(owner, step).sent_rows += end - begin;
                             if (last[index(owner)] == rank) return;  // part of the same message
                             last[index(owner)] = rank;
                             ++own.messages;
                             ++sends[index(owner)];
                           });
    }
    for (std::int64_t rank = 0; rank < plan.ranks; ++rank) {
      Step& own = work.at(rank, step);
      own.messages = std::max(own.messages, sends[index(rank)]);
    }
  }
  return work;
}

}  // namespace tilewise::distributed::simulation
