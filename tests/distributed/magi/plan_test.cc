// Plans of random lists against matrices of booleans: every visible pair is computed once, on one
// rank in one stage; every rank receives exactly the rows that it needs, once.
#include "distributed/magi/plan.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "distributed/magi/area.h"
#include "distributed/magi/masks.h"
#include "distributed/magi/rank_plan.h"
#include "distributed/magi/shard.h"
#include "problem/status.h"
#include "support/seed.h"

namespace tilewise::tests {
namespace {

using namespace distributed::magi;
using verify::Random;

struct Planned {
  SliceList list;
  PlanOptions options;
  Plan plan;
  std::vector<RankPlan> ranks;

  std::string text() const {
    return list.text() + " ranks " + std::to_string(options.ranks) + " chunk " +
           std::to_string(options.chunk_rows) + " stages " + std::to_string(options.stages) +
           " dealing " + std::to_string(static_cast<int>(options.dealing));
  }
};

Planned random_plan(Random& random) {
  Planned result = {random_slices(random, random.pick({2, 5, 20}), 40), {}, {}, {}};
  result.options = {random.between(1, 9), random.between(0, 7), random.between(0, 5),
                    random.pick({Dealing::kAutomatic, Dealing::kInOrder, Dealing::kByArea})};
  EXPECT_EQ(make_plan(result.list.mask(), result.options, &result.plan), TILEWISE_OK)
      << problem::message();
  for (std::int64_t rank = 0; rank < result.options.ranks; ++rank) {
    result.ranks.push_back(make_rank_plan(result.plan, rank));
  }
  return result;
}

// Each pair of local slices is a pair of the mask that no other rank or stage has, and none is
// left.
void expect_every_pair_once(const Planned& planned) {
  const SliceList& list = planned.list;
  BooleanMask expected = list.cells();
  BooleanMask shown(list.heads, list.q_len, list.k_len);
  for (std::size_t rank = 0; rank < planned.ranks.size(); ++rank) {
    const std::vector<std::int64_t> q_rows = positions(planned.plan.queries[rank]);
    for (std::size_t s = 0; s < planned.ranks[rank].stages.size(); ++s) {
      const Stage& stage = planned.ranks[rank].stages[s];
      const std::vector<std::int64_t> keys = positions(
          planned.plan.stage_keys(static_cast<std::int64_t>(rank), static_cast<std::int64_t>(s)));
      const auto q_count = static_cast<std::int64_t>(q_rows.size());
      ASSERT_EQ(static_cast<std::int64_t>(keys.size()), stage.key_rows);
      for (const Slice& slice : stage.slices) {
        ASSERT_TRUE(slice.q_begin >= 0 && slice.q_end <= q_count && slice.k_begin >= 0 &&
                    slice.k_end <= stage.key_rows);
      }
      BooleanMask local(list.heads, q_count, stage.key_rows);
      local.show(stage.slices);
      for (std::int64_t h = 0; h < list.heads; ++h) {
        for (std::int64_t q = 0; q < q_count; ++q) {
          for (std::int64_t k = 0; k < stage.key_rows; ++k) {
            if (!local.at(h, q, k)) continue;
            char& cell =
                shown.at(h, q_rows[static_cast<std::size_t>(q)], keys[static_cast<std::size_t>(k)]);
            ASSERT_EQ(cell, 0) << "twice";
            cell = 1;
          }
        }
      }
    }
  }
  ASSERT_TRUE(shown == expected);
}

// The rows that a rank receives are those that its queries see elsewhere: no more, each once.
void expect_needed_rows(const Planned& planned) {
  const SliceList& list = planned.list;
  BooleanMask cells = list.cells();
  for (std::size_t rank = 0; rank < planned.ranks.size(); ++rank) {
    std::vector<int> received(static_cast<std::size_t>(list.k_len));
    for (std::int64_t s = 1; s <= planned.plan.stages; ++s) {
      for (const std::int64_t key :
           positions(planned.plan.stage_keys(static_cast<std::int64_t>(rank), s))) {
        ++received[static_cast<std::size_t>(key)];
      }
    }
    std::vector<int> needed(static_cast<std::size_t>(list.k_len));
    for (const std::int64_t q : positions(planned.plan.queries[rank])) {
      for (std::int64_t k = 0; k < list.k_len; ++k) {
        for (std::int64_t h = 0; h < list.heads; ++h) {
          if (cells.at(h, q, k)) needed[static_cast<std::size_t>(k)] = 1;
        }
      }
    }
    for (const std::int64_t own : positions(planned.plan.keys[rank])) {
      needed[static_cast<std::size_t>(own)] = 0;
    }
    ASSERT_EQ(received, needed) << "rank " << rank;
    ASSERT_EQ(planned.plan.remote_rows(static_cast<std::int64_t>(rank)),
              std::accumulate(needed.begin(), needed.end(), std::int64_t{0}));
  }
}

// Every receive has the send of its peer, and the rows of both are the same rows of the whole.
void expect_matching_messages(const Planned& planned) {
  for (std::size_t s = 1; s <= static_cast<std::size_t>(planned.plan.stages); ++s) {
    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int64_t>> sent;
    for (std::size_t rank = 0; rank < planned.ranks.size(); ++rank) {
      const std::vector<std::int64_t> own = positions(planned.plan.keys[rank]);
      for (const Message& message : planned.ranks[rank].stages[s].sends) {
        auto& rows = sent[{static_cast<std::int32_t>(rank), message.peer}];
        for (const std::int64_t row : positions(message.rows))
          rows.push_back(own[static_cast<std::size_t>(row)]);
        ASSERT_EQ(message.count, static_cast<std::int64_t>(rows.size()));
      }
    }
    for (std::size_t rank = 0; rank < planned.ranks.size(); ++rank) {
      const std::vector<std::int64_t> keys = positions(
          planned.plan.stage_keys(static_cast<std::int64_t>(rank), static_cast<std::int64_t>(s)));
      std::int64_t rows = 0;
      for (const Message& message : planned.ranks[rank].stages[s].receives) {
        std::vector<std::int64_t> received;
        for (const std::int64_t row : positions(message.rows))
          received.push_back(keys[static_cast<std::size_t>(row)]);
        const auto match = sent.find({message.peer, static_cast<std::int32_t>(rank)});
        ASSERT_NE(match, sent.end());
        ASSERT_EQ(received, match->second);
        rows += message.count;
        sent.erase(match);
      }
      ASSERT_EQ(rows, static_cast<std::int64_t>(keys.size()));
    }
    ASSERT_TRUE(sent.empty());
  }
}

// The shards are a partition of the rows; counts of chunks differ by one at most.
void expect_even_shards(const Planned& planned) {
  const Plan& plan = planned.plan;
  for (const auto& [shards, rows] :
       {std::pair(&plan.queries, planned.list.q_len), std::pair(&plan.keys, planned.list.k_len)}) {
    std::vector<int> owned(static_cast<std::size_t>(rows));
    for (const Ranges& shard : *shards) {
      for (const std::int64_t row : positions(shard)) ++owned[static_cast<std::size_t>(row)];
    }
    ASSERT_EQ(owned, std::vector<int>(static_cast<std::size_t>(rows), 1));
  }
  std::vector<std::int64_t> counts(static_cast<std::size_t>(plan.ranks));
  for (const std::int32_t rank : plan.q_rank) ++counts[static_cast<std::size_t>(rank)];
  ASSERT_LE(*std::ranges::max_element(counts) - *std::ranges::min_element(counts), 1);
  BooleanMask cells = planned.list.cells();
  const std::int64_t share = planned.list.heads / plan.mask.heads;
  for (std::size_t rank = 0; rank < planned.ranks.size(); ++rank) {
    std::int64_t area = 0;
    for (const Range& rows : plan.queries[rank]) area += cells.area(rows.begin, rows.end);
    ASSERT_EQ(plan.area_of_rank[rank] * share, area);
  }
  ASSERT_GE(plan.largest_area(), plan.area_lower_bound);
}

TEST(MagiPlan, EveryPairIsComputedOnceFromRowsThatAreSentOnce) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int step = 0; step < 4000; ++step) {
    const Planned planned = random_plan(random);
    ASSERT_NO_FATAL_FAILURE(expect_even_shards(planned))
        << "step " << step << " " << planned.text();
    ASSERT_NO_FATAL_FAILURE(expect_every_pair_once(planned))
        << "step " << step << " " << planned.text();
    ASSERT_NO_FATAL_FAILURE(expect_needed_rows(planned))
        << "step " << step << " " << planned.text();
    ASSERT_NO_FATAL_FAILURE(expect_matching_messages(planned))
        << "step " << step << " " << planned.text();
  }
}

// Rows that are dispatched to all ranks and undispatched are where they were.
TEST(MagiPlan, DispatchedRowsComeBack) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int step = 0; step < 200; ++step) {
    const Planned planned = random_plan(random);
    std::vector<std::int32_t> whole(static_cast<std::size_t>(3 * planned.list.q_len));
    std::iota(whole.begin(), whole.end(), 0);
    std::vector<std::int32_t> back(whole.size(), -1);
    for (const Ranges& shard : planned.plan.queries) {
      std::vector<std::int32_t> rows(static_cast<std::size_t>(3 * row_count(shard)));
      dispatch(shard, whole.data(), 3 * sizeof(std::int32_t), rows.data());
      std::size_t next = 0;
      for (const std::int64_t position : positions(shard)) {
        ASSERT_EQ(rows[next], 3 * position);
        next += 3;
      }
      undispatch(shard, rows.data(), 3 * sizeof(std::int32_t), back.data());
    }
    ASSERT_EQ(back, whole);
  }
}

// The bound is never above the best of all deals, which a search of small ones finds.
TEST(MagiPlan, TheLowerBoundHoldsForEveryDeal) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int step = 0; step < 300; ++step) {
    const std::int64_t ranks = random.between(1, 3);
    std::vector<std::int64_t> areas(static_cast<std::size_t>(random.between(0, 7)));
    for (std::int64_t& area : areas) area = random.between(0, 30) * random.pick({1, 1, 4});
    const auto chunks = static_cast<std::int64_t>(areas.size());
    std::int64_t best = INT64_MAX;
    std::int64_t deals = 1;
    for (std::int64_t c = 0; c < chunks; ++c) deals *= ranks;
    for (std::int64_t deal = 0; deal < deals; ++deal) {
      std::vector<std::int64_t> sums(static_cast<std::size_t>(ranks));
      std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks));
      std::int64_t code = deal;
      for (const std::int64_t area : areas) {
        sums[static_cast<std::size_t>(code % ranks)] += area;
        ++counts[static_cast<std::size_t>(code % ranks)];
        code /= ranks;
      }
      if (std::ranges::max(counts) - std::ranges::min(counts) > 1) continue;
      best = std::min(best, std::ranges::max(sums));
    }
    const std::int64_t bound = area_lower_bound(areas, ranks);
    ASSERT_LE(bound, best);
    ASSERT_GE(deal_by_area(areas, ranks).largest_area(), best);
    ASSERT_GE(deal_in_order(areas, ranks).largest_area(), best);
  }
}

TEST(MagiPlan, BadOptionsAreRefusedByName) {
  Plan plan;
  const Mask mask = SliceList{64, 64, 1, {}}.mask();
  EXPECT_EQ(make_plan(mask, {.ranks = 0}, &plan), TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(problem::message(), "ranks: is 0, must be 1 to 2^31 - 1");
  EXPECT_EQ(make_plan(mask, {.ranks = 2, .chunk_rows = -1}, &plan), TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(problem::message(), "chunk_rows: is -1, must be at least 0");
  EXPECT_EQ(make_plan(mask, {.ranks = 2, .stages = -3}, &plan), TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(problem::message(), "stages: is -3, must be at least 0");
}

}  // namespace
}  // namespace tilewise::tests
