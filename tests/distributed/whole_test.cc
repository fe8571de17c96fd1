// Which keys of a range of tokens the queries of another see: compared with the definition, pair by
// pair.
#include "distributed/whole.h"

#include <gtest/gtest.h>

#include "distributed/random_whole.h"
#include "support/seed.h"

namespace tilewise::tests {
namespace {

using distributed::Lengths;
using distributed::Schedule;
using distributed::Shard;
using distributed::TokenRange;
using distributed::Whole;
using verify::Random;

TEST(Whole, VisibleRowsAndPairsAreThoseOfTheDefinition) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int round = 0; round < 400; ++round) {
    const RandomWhole sample(random);
    const std::int32_t size = static_cast<std::int32_t>(random.between(1, 6));
    const Schedule schedule =
        random.pick({Schedule::kContiguous, Schedule::kZigzag, Schedule::kStriped});
    const std::int32_t reader = static_cast<std::int32_t>(random.between(0, size - 1));
    const std::int32_t owner = static_cast<std::int32_t>(random.between(0, size - 1));
    const TokenRange queries =
        distributed::shard_of(schedule, sample.lengths.q, size, reader).ranges[0];
    const TokenRange keys =
        distributed::shard_of(schedule, sample.lengths.k, size, owner).ranges[0];
    std::int64_t pairs = 0;
    std::int64_t first = keys.rows();
    std::int64_t last = -1;
    for (std::int64_t b = 0; b < sample.batch(); ++b) {
      for (std::int64_t i = 0; i < queries.rows(); ++i) {
        for (std::int64_t j = 0; j < keys.rows(); ++j) {
          if (!sample.visible(b, queries.begin + i * queries.stride, keys.begin + j * keys.stride))
            continue;
          ++pairs;
          first = std::min(first, j);
          last = std::max(last, j);
        }
      }
    }
    ASSERT_EQ(distributed::visible_pairs(sample.whole, queries, keys), pairs) << round;
    const math::KeyRange rows = distributed::visible_rows(sample.whole, queries, keys);
    if (pairs == 0) {
      ASSERT_GE(rows.begin, rows.end) << round;
    } else {
      ASSERT_EQ(rows.begin, first) << round;
      ASSERT_EQ(rows.end, last + 1) << round;
    }
  }
}

TEST(Whole, TheAreaOfABandIsTheSumOfItsRows) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed() + 1);
  for (int round = 0; round < 20000; ++round) {
    math::Band band = math::full_band(random.between(0, 15), random.between(0, 15));
    band.lower_slope = random.between(0, 1);
    band.upper_slope = random.between(0, 1);
    if (band.lower_slope) band.lower_offset = random.between(-20, 20);
    if (band.upper_slope) band.upper_offset = random.between(-20, 20);
    const std::int64_t begin = random.between(0, 15);
    const std::int64_t end = random.between(0, 15);
    std::int64_t expected = 0;
    for (std::int64_t row = begin; row < end; ++row) {
      const math::KeyRange keys = math::visible_keys(band, row);
      expected += std::max<std::int64_t>(keys.end - keys.begin, 0);
    }
    ASSERT_EQ(distributed::band_area(band, begin, end), expected) << round;
  }
}

TEST(Whole, ZigzagBalancesACausalMaskExactly) {
  tilewise_problem request;
  tilewise_problem_init(&request);
  request.causal = 1;
  const std::int64_t shape[] = {1, 1, 1, 8};
  request.q = request.k = request.v = request.out =
      tilewise_contiguous(nullptr, TILEWISE_FP32, 4, shape);
  constexpr std::int64_t kChunk = 37;
  for (const std::int32_t size : {1, 2, 3, 4, 7, 8, 11, 64}) {
    const Lengths lengths = {2 * size * kChunk, 2 * size * kChunk};
    Whole whole;
    ASSERT_EQ(distributed::make_whole(problem::Operation::kForward, request, lengths, &whole),
              TILEWISE_OK);
    for (std::int32_t rank = 0; rank < size; ++rank) {
      const Shard shard = distributed::shard_of(Schedule::kZigzag, lengths.q, size, rank);
      std::int64_t pairs = 0;
      for (std::int32_t r = 0; r < shard.count; ++r) {
        pairs += distributed::visible_pairs(whole, shard.ranges[static_cast<std::size_t>(r)],
                                            {0, lengths.k, 1});
      }
      EXPECT_EQ(pairs, (2 * size - 1) * kChunk * kChunk + kChunk * (kChunk + 1)) << rank;
    }
    EXPECT_EQ(distributed::choose_schedule(whole, lengths, size),
              size > 1 ? Schedule::kZigzag : Schedule::kContiguous);
    request.causal = 0;
    ASSERT_EQ(distributed::make_whole(problem::Operation::kForward, request, lengths, &whole),
              TILEWISE_OK);
    EXPECT_EQ(distributed::choose_schedule(whole, lengths, size), Schedule::kContiguous);
    request.causal = 1;
  }
}

}  // namespace
}  // namespace tilewise::tests
