#include "distributed/magi/rank_plan.h"

#include <algorithm>

namespace tilewise::distributed::magi {
namespace {

std::size_t index(std::int64_t number) { return static_cast<std::size_t>(number); }

// The rows of a stage by their owners.
std::vector<Message> receives_of(const Plan& plan, const Ranges& keys) {
  std::vector<Message> messages;
  std::vector<std::int32_t> number(index(plan.ranks), -1);  // of the owner's message
  std::int64_t row = 0;
  for_each_owner(plan, keys, [&](std::int32_t owner, std::int64_t begin, std::int64_t end) {
    if (number[index(owner)] < 0) {
      number[index(owner)] = static_cast<std::int32_t>(messages.size());
      messages.push_back({owner, 0, {}});
    }
    Message& message = messages[index(number[index(owner)])];
    message.count += end - begin;
    append(message.rows, row, row + end - begin);
    row += end - begin;
  });
  std::sort(messages.begin(), messages.end(),
            [](const Message& a, const Message& b) { return a.peer < b.peer; });
  return messages;
}

// Returns the local rows of `rows`, which are part of the shard.
Ranges localised(const Ranges& shard, const std::vector<std::int64_t>& before, const Ranges& rows) {
  Ranges result;
  for (const Range& range : rows) {
    const std::size_t run = first_ending_after(shard, range.begin);
    const std::int64_t first = before[run] + range.begin - shard[run].begin;
    append(result, first, first + range.end - range.begin);
  }
  return result;
}

std::vector<Message> sends_of(const Plan& plan, std::int64_t rank, std::int64_t stage) {
  std::vector<Message> messages;
  const Ranges& shard = plan.keys[index(rank)];
  const std::vector<std::int64_t> before = rows_before(shard);
  for (std::int64_t peer = 0; peer < plan.ranks; ++peer) {
    if (peer == rank) continue;
    const Ranges rows = intersection(shard, plan.stage_keys(peer, stage));
    if (rows.empty()) continue;
    messages.push_back(
        {static_cast<std::int32_t>(peer), row_count(rows), localised(shard, before, rows)});
  }
  return messages;
}

// Appends the slices of a band whose rows are those of one range of queries.
void append_local(const MaskBand& rows, std::int64_t q_shift, const Ranges& keys,
                  const std::vector<std::int64_t>& before, std::vector<Slice>& slices) {
  for (std::size_t k = first_ending_after(keys, rows.band.key_begin);
       k < keys.size() && keys[k].begin < rows.band.key_end; ++k) {
    MaskBand part = {crop(rows.band, {rows.band.row_begin, rows.band.row_end}, keys[k]), rows.head};
    if (trim(part.band)) append_slices(part, q_shift, before[k] - keys[k].begin, slices);
  }
}

}  // namespace

std::vector<Slice> local_slices(const Mask& mask, const Ranges& queries, const Ranges& keys) {
  std::vector<Slice> slices;
  const std::vector<std::int64_t> q_before = rows_before(queries);
  const std::vector<std::int64_t> k_before = rows_before(keys);
  for (const MaskBand& entry : mask.bands) {
    for (std::size_t q = first_ending_after(queries, entry.band.row_begin);
         q < queries.size() && queries[q].begin < entry.band.row_end; ++q) {
      const Range all = {entry.band.key_begin, entry.band.key_end};
      MaskBand rows = {crop(entry.band, queries[q], all), entry.head};
      if (trim(rows.band)) {
        append_local(rows, q_before[q] - queries[q].begin, keys, k_before, slices);
      }
    }
  }
  return slices;
}

std::int64_t RankPlan::most_stage_rows() const {
  std::int64_t most = 0;
  for (std::size_t s = 1; s < stages.size(); ++s) most = math::max(most, stages[s].key_rows);
  return most;
}

RankPlan make_rank_plan(const Plan& plan, std::int64_t rank) {
  RankPlan result;
  result.q_rows = row_count(plan.queries[index(rank)]);
  result.k_rows = row_count(plan.keys[index(rank)]);
  for (std::int64_t s = 0; s <= plan.stages; ++s) {
    const Ranges keys = plan.stage_keys(rank, s);
    Stage stage;
    stage.key_rows = row_count(keys);
    if (s > 0) {
      stage.sends = sends_of(plan, rank, s);
      stage.receives = receives_of(plan, keys);
    }
    stage.slices = local_slices(plan.mask, plan.queries[index(rank)], keys);
    result.stages.push_back(std::move(stage));
  }
  return result;
}

}  // namespace tilewise::distributed::magi
