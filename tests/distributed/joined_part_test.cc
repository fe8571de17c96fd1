// Parts of several ranges at once, against every pair of a row and a key.
#include "distributed/joined_part.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "registry/support.h"

namespace tilewise::tests {
namespace {

using distributed::JoinedPart;
using distributed::TokenRange;
using distributed::Whole;

struct Sides {
  std::vector<TokenRange> queries;
  std::vector<TokenRange> keys;
};

std::vector<TokenRange> random_ranges(Random& random, std::int64_t length) {
  std::vector<std::int64_t> ends(4);
  for (std::int64_t& end : ends) end = random.between(0, length);
  std::sort(ends.begin(), ends.end());
  std::vector<TokenRange> ranges = {{ends[0], ends[1], 1}};
  if (random.chance(0.7)) ranges.push_back({ends[2], ends[3], 1});
  return ranges;
}

// The tokens of a sequence in some ranges, and the row of the first of them.
struct Rows {
  std::vector<std::int64_t> positions;
  std::int64_t begin = 0;
};
Rows rows_of(const std::vector<TokenRange>& ranges, std::int64_t start, std::int64_t length) {
  Rows rows;
  for (const TokenRange& range : ranges) {
    for (std::int64_t token = range.begin; token < range.end; ++token) {
      if (token < start) ++rows.begin;
      if (token >= start && token < start + length) rows.positions.push_back(token - start);
    }
  }
  return rows;
}

// Whether one edge can describe the mask: then the numbers of visible keys are those of some reach.
bool is_one_band(const std::vector<std::int64_t>& counts, std::int64_t keys) {
  const auto rows = static_cast<std::int64_t>(counts.size());
  for (std::int64_t reach = -rows; reach <= keys; ++reach) {
    bool equal = true;
    for (std::int64_t i = 0; i < rows; ++i) {
      equal = equal &&
              counts[static_cast<std::size_t>(i)] == std::clamp<std::int64_t>(i + reach, 0, keys);
    }
    if (equal) return true;
  }
  return false;
}

TEST(JoinedPart, SeesTheKeysOfItsRows) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  int bands = 0;
  int others = 0;
  for (int round = 0; round < 30000; ++round) {
    Whole whole;
    whole.problem.window_right = random.chance(0.2) ? -1 : random.between(0, 3);
    if (random.chance(0.05)) whole.problem.window_right = INT64_MAX;
    const std::int64_t q_len = random.between(0, 12);
    const std::int64_t k_len = random.chance(0.6) ? q_len : random.between(0, 12);
    const problem::Sequence sequence = {0,     random.between(0, 5),
                                        q_len, random.between(0, 5),
                                        k_len, random.chance(0.5) ? k_len - q_len : 0};
    const Sides sides = {random_ranges(random, 20), random_ranges(random, 20)};
    const JoinedPart part = distributed::join_parts(whole, sequence, sides.queries, sides.keys);
    const Rows queries = rows_of(sides.queries, sequence.q_start, q_len);
    const Rows keys = rows_of(sides.keys, sequence.k_start, k_len);
    ASSERT_EQ(part.q_begin, queries.begin);
    ASSERT_EQ(part.k_begin, keys.begin);
    ASSERT_EQ(part.rows(), static_cast<std::int64_t>(queries.positions.size()));
    ASSERT_EQ(part.keys(), static_cast<std::int64_t>(keys.positions.size()));
    if (part.rows() == 0 || part.keys() == 0) continue;
    const std::int64_t right = whole.problem.window_right < 0
                                   ? 1000
                                   : std::min<std::int64_t>(whole.problem.window_right, 1000);
    std::vector<std::int64_t> counts;
    for (const std::int64_t row : queries.positions) {
      counts.push_back(
          std::count_if(keys.positions.begin(), keys.positions.end(),
                        [&](std::int64_t key) { return key <= row + sequence.diagonal + right; }));
    }
    ASSERT_EQ(part.is_band, is_one_band(counts, part.keys())) << round;
    ++(part.is_band ? bands : others);
    if (!part.is_band) continue;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      ASSERT_EQ(counts[i],
                std::clamp<std::int64_t>(static_cast<std::int64_t>(i) + part.reach, 0, part.keys()))
          << round;
    }
    ASSERT_EQ(part.sees_keys(), counts.back() > 0) << round;
    ASSERT_EQ(part.is_full(), counts.front() == part.keys()) << round;
  }
  EXPECT_GT(bands, 1000);
  EXPECT_GT(others, 1000);
}

}  // namespace
}  // namespace tilewise::tests
