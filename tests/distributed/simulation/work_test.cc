// The areas and rows of schedules against matrices of booleans.
#include "distributed/simulation/work.h"

#include <gtest/gtest.h>

#include <functional>

#include "distributed/magi/area.h"
#include "distributed/magi/masks.h"
#include "problem/status.h"
#include "support/seed.h"

namespace tilewise::tests {
namespace {

using namespace distributed::simulation;
using distributed::Schedule;
using verify::Random;
using RankOfRow = std::function<std::int64_t(std::int64_t row, std::int64_t rows)>;

// The rank of a row of an axis that `pieces` pieces cut as evenly as possible, longer ones first.
std::int64_t piece_of(std::int64_t row, std::int64_t rows, std::int64_t pieces) {
  std::int64_t begin = 0;
  for (std::int64_t p = 0;; ++p) {
    begin += rows / pieces + (p < rows % pieces ? 1 : 0);
    if (row < begin) return p;
  }
}

RankOfRow owner(Schedule schedule, std::int64_t ranks) {
  switch (schedule) {
    case Schedule::kContiguous:
      return [=](std::int64_t row, std::int64_t rows) { return piece_of(row, rows, ranks); };
    case Schedule::kZigzag:
      return [=](std::int64_t row, std::int64_t rows) {
        const std::int64_t piece = piece_of(row, rows, 2 * ranks);
        return std::min(piece, 2 * ranks - 1 - piece);
      };
    default:
      return [=](std::int64_t row, std::int64_t) { return row % ranks; };
  }
}

void expect_ring(const SliceList& list, Schedule schedule, std::int64_t ranks) {
  Work work;
  ASSERT_EQ(ring_work(list.mask(), schedule, ranks, &work), TILEWISE_OK) << problem::message();
  const RankOfRow rank_of = owner(schedule, ranks);
  BooleanMask cells = list.cells();
  const auto size = static_cast<std::size_t>(ranks * ranks);
  std::vector<std::int64_t> areas(size);  // (rank, step)
  std::vector<std::int64_t> q_rows(static_cast<std::size_t>(ranks));
  std::vector<std::int64_t> k_rows(static_cast<std::size_t>(ranks));
  for (std::int64_t k = 0; k < list.k_len; ++k)
    ++k_rows[static_cast<std::size_t>(rank_of(k, list.k_len))];
  for (std::int64_t q = 0; q < list.q_len; ++q) {
    const std::int64_t rank = rank_of(q, list.q_len);
    ++q_rows[static_cast<std::size_t>(rank)];
    for (std::int64_t k = 0; k < list.k_len; ++k) {
      const std::int64_t step = (rank - rank_of(k, list.k_len) + ranks) % ranks;
      for (std::int64_t h = 0; h < list.heads; ++h)
        areas[static_cast<std::size_t>(rank * ranks + step)] += cells.at(h, q, k);
    }
  }
  const std::int64_t share = list.heads / list.mask().heads;
  ASSERT_EQ(work.steps, ranks);
  ASSERT_EQ(work.q_rows, q_rows);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    for (std::int64_t step = 0; step < ranks; ++step) {
      ASSERT_EQ(work.at(rank, step).area * share,
                areas[static_cast<std::size_t>(rank * ranks + step)])
          << rank << " " << step;
      // Keys travel to the last rank that sees them.
      const std::int64_t from = (rank - step + ranks) % ranks;
      bool needed = false;
      for (std::int64_t later = step; later < ranks; ++later) {
        needed =
            needed || areas[static_cast<std::size_t>((from + later) % ranks * ranks + later)] > 0;
      }
      const std::int64_t rows = step > 0 && needed ? k_rows[static_cast<std::size_t>(from)] : 0;
      ASSERT_EQ(work.at(rank, step).received_rows, rows);
      if (step > 0) {
        ASSERT_EQ(work.at((rank + ranks - 1) % ranks, step).sent_rows, rows);
      }
    }
  }
}

TEST(SimulationWork, RingsHaveTheAreasAndRowsOfTheirShards) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int step = 0; step < 1500; ++step) {
    const SliceList list = random_slices(random, 6, 30);
    const std::int64_t ranks = random.between(1, 7);
    for (const Schedule schedule : {Schedule::kContiguous, Schedule::kZigzag, Schedule::kStriped}) {
      ASSERT_NO_FATAL_FAILURE(expect_ring(list, schedule, ranks))
          << schedule_name(schedule) << " on " << ranks << " ranks, " << list.text();
    }
  }
}

TEST(SimulationWork, PlansHaveTheAreaOfTheMaskAndReceiveWhatTheyNeed) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int step = 0; step < 500; ++step) {
    const SliceList list = random_slices(random, 6, 40);
    distributed::magi::Plan plan;
    ASSERT_EQ(make_plan(list.mask(),
                        {.ranks = random.between(1, 7), .chunk_rows = random.between(0, 5)}, &plan),
              TILEWISE_OK);
    const Work work = magi_work(plan);
    std::int64_t sent = 0;
    for (std::int64_t rank = 0; rank < plan.ranks; ++rank) {
      ASSERT_EQ(work.sum(rank, &Step::area), plan.area_of_rank[static_cast<std::size_t>(rank)])
          << list.text();
      ASSERT_EQ(work.sum(rank, &Step::received_rows), plan.remote_rows(rank)) << list.text();
      sent += work.sum(rank, &Step::sent_rows);
    }
    ASSERT_EQ(sent, plan.remote_rows());
  }
}

TEST(SimulationWork, TooManyPairsOfRanksAndSlicesAreRefused) {
  SliceList list = {100000, 100000, 1, {}};
  for (std::int64_t d = 0; d < 1000; ++d)
    list.slices.push_back({d * 100, d * 100 + 100, d * 100, d * 100 + 100, 1, -1});
  Work work;
  EXPECT_EQ(ring_work(list.mask(), Schedule::kStriped, 4096, &work), TILEWISE_UNSUPPORTED);
  EXPECT_STREQ(problem::message(), "striped: 4096 ranks and 1000 slices are too many to simulate");
}

}  // namespace
}  // namespace tilewise::tests
