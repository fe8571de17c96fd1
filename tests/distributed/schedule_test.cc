// Every token of an axis belongs to one rank (T24), and zigzag balances a causal mask exactly.
#include "distributed/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace tilewise::tests {
namespace {

using distributed::Schedule;
using distributed::Shard;
using distributed::TokenRange;

constexpr Schedule kSchedules[] = {Schedule::kContiguous, Schedule::kZigzag, Schedule::kStriped};

std::vector<std::int64_t> tokens_of(const Shard& shard) {
  std::vector<std::int64_t> tokens;
  for (std::int32_t r = 0; r < shard.count; ++r) {
    const TokenRange& range = shard.ranges[static_cast<std::size_t>(r)];
    for (std::int64_t t = range.begin; t < range.end; t += range.stride) tokens.push_back(t);
  }
  return tokens;
}

TEST(Schedule, EveryTokenBelongsToOneRank) {
  for (const Schedule schedule : kSchedules) {
    for (std::int32_t size = 1; size <= 13; ++size) {
      for (const std::int64_t length : {0, 1, 2, 3, 5, 12, 13, 26, 27, 100, 257}) {
        std::vector<std::int64_t> all;
        std::int64_t least = length;
        std::int64_t most = 0;
        for (std::int32_t rank = 0; rank < size; ++rank) {
          const Shard shard = distributed::shard_of(schedule, length, size, rank);
          const std::vector<std::int64_t> tokens = tokens_of(shard);
          ASSERT_EQ(static_cast<std::int64_t>(tokens.size()), shard.rows());
          ASSERT_TRUE(std::is_sorted(tokens.begin(), tokens.end()));
          all.insert(all.end(), tokens.begin(), tokens.end());
          least = std::min(least, shard.rows());
          most = std::max(most, shard.rows());
        }
        std::sort(all.begin(), all.end());
        std::vector<std::int64_t> expected(static_cast<std::size_t>(length));
        std::iota(expected.begin(), expected.end(), 0);
        ASSERT_EQ(all, expected) << distributed::schedule_name(schedule) << ", " << length
                                 << " tokens on " << size;
        ASSERT_LE(most - least, schedule == Schedule::kZigzag ? 2 : 1);
      }
    }
  }
}

TEST(Schedule, TheNumberOfRangesDependsOnTheRankOnly) {
  for (const Schedule schedule : kSchedules) {
    for (std::int32_t rank = 0; rank < 7; ++rank) {
      const Shard shard = distributed::shard_of(schedule, 1000, 7, rank);
      EXPECT_GE(shard.count, 1);
      for (const std::int64_t length : {0, 3, 14})
        EXPECT_EQ(distributed::shard_of(schedule, length, 7, rank).count, shard.count);
    }
  }
}

TEST(Schedule, RowsBelowATokenAreCounted) {
  for (const TokenRange range : {TokenRange{3, 20, 1}, TokenRange{3, 20, 4}, TokenRange{5, 5, 2}}) {
    for (std::int64_t token = 0; token < 25; ++token) {
      std::int64_t expected = 0;
      for (std::int64_t t = range.begin; t < range.end; t += range.stride) expected += t < token;
      EXPECT_EQ(range.rows_below(token), expected) << token;
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
