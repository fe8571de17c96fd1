// Timelines against formulas where there are some, and against the rules that they must keep.
#include "distributed/simulation/timeline.h"

#include <gtest/gtest.h>

#include <cmath>

#include "distributed/magi/masks.h"
#include "problem/status.h"
#include "support/seed.h"

namespace tilewise::tests {
namespace {

using namespace distributed::simulation;
using distributed::Schedule;
using verify::Random;

Work ring(std::int64_t tokens, std::int64_t kind, Schedule schedule, std::int64_t ranks) {
  Work work;
  const SliceList list = {tokens, tokens, 1, {{0, tokens, 0, tokens, kind, -1}}};
  EXPECT_EQ(ring_work(list.mask(), schedule, ranks, &work), TILEWISE_OK) << problem::message();
  return work;
}

constexpr double kPair = 1e-9;

TEST(SimulationTimeline, WithFreeCommunicationAContiguousCausalRingTakesAsLongAsItsLastRank) {
  const std::int64_t shard = 4096;
  for (const std::int64_t ranks : {1, 2, 8, 33}) {
    const Timeline timeline =
        simulate(ring(shard * ranks, 1, Schedule::kContiguous, ranks), {kPair, INFINITY, 0, 1, 0});
    const double last = static_cast<double>(shard * shard * (ranks - 1) + shard * (shard + 1) / 2);
    EXPECT_NEAR(timeline.seconds, last * kPair, 1e-9 * timeline.seconds);
    EXPECT_NEAR(timeline.efficiency(),
                static_cast<double>(ranks) / static_cast<double>(2 * ranks - 1), 1e-3);
  }
}

// Every rank has the same area, and every step after the first takes as long on every rank.
TEST(SimulationTimeline, WithFreeCommunicationACausalZigzagRingIsPerfect) {
  for (const std::int64_t ranks : {1, 2, 7, 64}) {
    const Timeline timeline =
        simulate(ring(512 * ranks, 1, Schedule::kZigzag, ranks), {kPair, INFINITY, 0, 1, 0});
    EXPECT_NEAR(timeline.efficiency(), 1, 1e-9) << ranks;
  }
}

// 3 hops of full shards, or 3 and as many of gradients of which the last is exposed.
TEST(SimulationTimeline, WithFreeComputationARingTakesItsHops) {
  const Work work = ring(4000, 0, Schedule::kContiguous, 4);
  EXPECT_NEAR(simulate(work, {0, 1e9, 1e-6, 100, 0}).seconds, 3 * (1e-6 + 1000 * 100 / 1e9), 1e-12);
  EXPECT_NEAR(simulate(work, {0, 1e9, 1e-6, 100, 200}).seconds, 3 * (2e-6 + 1000 * 300 / 1e9),
              1e-12);
}

// With communication slower than computation, hops follow each other without a gap, and the last
// step is computed after them.
TEST(SimulationTimeline, ASlowLinkHidesTheComputation) {
  const Work work = ring(4000, 0, Schedule::kContiguous, 4);
  const double hop = 1000 * 1000 / 1e9;
  const double step = 1000 * 1000 * 1e-10;
  EXPECT_NEAR(simulate(work, {1e-10, 1e9, 0, 1000, 0}).seconds, 3 * hop + step, 1e-12);
}

void expect_rules(const Work& work, const Machine& machine, const Timeline& timeline) {
  double slowest = 0;
  for (const RankTimeline& rank : timeline.ranks) {
    slowest = std::max(slowest, rank.computing());
    for (std::size_t s = 1; s < rank.compute.size(); ++s) {
      ASSERT_GE(rank.compute[s].begin, rank.compute[s - 1].end);
      ASSERT_GE(rank.compute[s].begin, rank.cast[s].end);
      if (s >= 2) {
        ASSERT_GE(rank.cast[s].begin, rank.compute[s - 2].end);
        ASSERT_GE(rank.cast[s].begin, rank.cast[s - 1].end);
      }
      if (!rank.reduce.empty()) {
        ASSERT_GE(rank.reduce[s].begin, rank.compute[s].end);
      }
    }
  }
  const double rounding = 1e-12 * timeline.seconds;
  ASSERT_GE(timeline.seconds + rounding, slowest);
  ASSERT_LE(timeline.efficiency(), 1 + 1e-12);
  double everything = 0;  // one after the other, and every exchange waits for all
  for (std::int64_t step = 0; step < work.steps; ++step) {
    double compute = 0;
    double cast = 0;
    double reduce = 0;
    for (std::int64_t rank = 0; rank < work.ranks; ++rank) {
      const Step& own = work.at(rank, step);
      compute = std::max(compute, machine.seconds_per_pair * static_cast<double>(own.area));
      const double latency = machine.latency * static_cast<double>(own.messages);
      const double rows = static_cast<double>(std::max(own.received_rows, own.sent_rows));
      cast = std::max(cast, latency + rows * machine.row_bytes / machine.bandwidth);
      if (machine.gradient_bytes > 0)
        reduce = std::max(reduce, latency + rows * machine.gradient_bytes / machine.bandwidth);
    }
    everything += compute + cast + reduce;
  }
  ASSERT_LE(timeline.seconds, everything + rounding);
}

TEST(SimulationTimeline, RandomSchedulesKeepTheRules) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int step = 0; step < 500; ++step) {
    const SliceList list = random_slices(random, 6, 200);
    const std::int64_t ranks = random.between(1, 7);
    const Machine machine = {1e-9, random.pick({1e6, 1e8, 1e10}), random.pick({0.0, 1e-6}),
                             random.pick({1.0, 64.0}), random.pick({0.0, 2.0, 128.0})};
    for (const Schedule schedule : kSchedules) {
      Work work;
      if (schedule == Schedule::kBalanced) {
        distributed::magi::Plan plan;
        ASSERT_EQ(make_plan(list.mask(),
                            {.ranks = ranks,
                             .chunk_rows = random.between(0, 20),
                             .stages = random.between(0, 5)},
                            &plan),
                  TILEWISE_OK);
        work = magi_work(plan);
      } else {
        ASSERT_EQ(ring_work(list.mask(), schedule, ranks, &work), TILEWISE_OK);
      }
      ASSERT_NO_FATAL_FAILURE(expect_rules(work, machine, simulate(work, machine)))
          << schedule_name(schedule) << " on " << ranks << " ranks, " << list.text();
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
