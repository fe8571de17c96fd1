// The bytes and messages of a run are those that the plan states, and have closed forms.
#include "distributed/fingerprint.h"
#include "distributed/ranked_run.h"
#include "registry/support.h"

namespace tilewise::tests {
namespace {

// What a rank has sent and received, without the comparison of the problems.
struct Counted {
  Counter::Count sent, received;
};
Counted counted(RankedRun& ranks, std::int32_t rank, std::int32_t size) {
  const Counter& counter = static_cast<Counter&>(*ranks.wrapper(rank));
  const std::int64_t bytes = static_cast<std::int64_t>(sizeof(distributed::Fingerprint));
  return {{counter.sent.messages - (size - 1), counter.sent.bytes - (size - 1) * bytes},
          {counter.received.messages - (size - 1), counter.received.bytes - (size - 1) * bytes}};
}

RankedSetup counting(std::int32_t size, std::int32_t schedule) {
  RankedSetup setup;
  setup.size = size;
  setup.schedule = schedule;
  setup.wrap = [](const tilewise_communicator& inner) { return std::make_unique<Counter>(inner); };
  return setup;
}

void expect_ok(const std::vector<Outcome>& outcomes) {
  for (const Outcome& outcome : outcomes) ASSERT_EQ(outcome.status, TILEWISE_OK) << outcome.message;
}

TEST(RingTraffic, IsWhatThePlanStates) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int round = 0; round < 40; ++round) {
    const std::int32_t size = static_cast<std::int32_t>(random.between(1, 6));
    const std::int32_t schedule = static_cast<std::int32_t>(random.between(1, 4));
    Case c = random_ranked_case(TILEWISE_FP32, schedule, random);
    c.operation = Operation::kBackward;
    c.sink = c.alibi = false;  // without sums of their gradients
    Instance instance(c);
    give_forward_results(instance);
    for (const Operation operation : kOperations) {
      RankedRun ranks(instance.request(), counting(size, schedule));
      ranks.set_forward_results(instance.request());
      expect_ok(ranks.run(operation));
      for (std::int32_t rank = 0; rank < size; ++rank) {
        const Counted count = counted(ranks, rank, size);
        const tilewise_distributed_info& info = ranks.info(rank);
        EXPECT_EQ(count.sent.messages, info.sent_messages) << describe(c);
        EXPECT_EQ(count.sent.bytes, info.sent_bytes) << describe(c);
        EXPECT_EQ(count.received.messages, info.received_messages) << describe(c);
        EXPECT_EQ(count.received.bytes, info.received_bytes) << describe(c);
      }
    }
  }
}

// (R - 1) shards of K and V go through every rank, and backward as many of dK and dV in fp32, all
// of them to the next rank forward.
TEST(RingTraffic, WithoutAMaskIsThatOfTheRing) {
  constexpr std::int64_t kRows = 6, kBatch = 2, kHeads = 3, kDim = 8, kValueDim = 5;
  for (const std::int32_t size : {1, 2, 5}) {
    Case c = make_case(Operation::kBackward, TILEWISE_BF16,
                       {kBatch, size * kRows, size * kRows, 2 * kHeads, kHeads, kDim});
    c.value_dim = kValueDim;
    Instance instance(c);
    give_forward_results(instance);
    for (const Operation operation : kOperations) {
      RankedRun ranks(instance.request(), counting(size, TILEWISE_SCHEDULE_CONTIGUOUS));
      ranks.set_forward_results(instance.request());
      expect_ok(ranks.run(operation));
      const std::int64_t shard = kRows * kBatch * kHeads * (kDim + kValueDim);  // elements
      const bool backward = operation == Operation::kBackward;
      for (std::int32_t rank = 0; rank < size; ++rank) {
        const Counted count = counted(ranks, rank, size);
        EXPECT_EQ(count.sent.messages, (size - 1) * (backward ? 2 : 1));
        EXPECT_EQ(count.sent.bytes, (size - 1) * shard * (backward ? 2 + 4 : 2));
        EXPECT_EQ(count.received.bytes, count.sent.bytes);
      }
    }
  }
}

// The rows of a token plan, times the numbers of a row.
TEST(BalancedTraffic, IsThatOfTheTokenPlan) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int round = 0; round < 20; ++round) {
    const std::int32_t size = static_cast<std::int32_t>(random.between(2, 6));
    Case c = random_balanced_case(TILEWISE_BF16, random);
    c.operation = Operation::kBackward;
    c.sink = false;
    Instance instance(c);
    give_forward_results(instance);
    for (const Operation operation : kOperations) {
      RankedRun ranks(instance.request(), counting(size, TILEWISE_SCHEDULE_BALANCED));
      ranks.set_forward_results(instance.request());
      expect_ok(ranks.run(operation));
      const std::int64_t columns = c.kv_heads * (c.head_dim + c.value_dim);
      const std::int64_t returned = operation == Operation::kBackward ? columns * 4 : 0;
      tilewise_token_plan_info whole;
      tilewise_token_plan_info_init(&whole);
      ASSERT_EQ(tilewise_token_plan_describe(ranks.token_plan(), &whole), TILEWISE_OK);
      std::int64_t area = 0;
      std::int64_t rows = 0;
      for (std::int32_t rank = 0; rank < size; ++rank) {
        tilewise_token_plan_rank_info info;
        tilewise_token_plan_rank_info_init(&info);
        ASSERT_EQ(tilewise_token_plan_describe_rank(ranks.token_plan(), rank, &info), TILEWISE_OK);
        const Counted count = counted(ranks, rank, size);
        EXPECT_EQ(count.sent.bytes, info.sent_rows * columns * 2 + info.received_rows * returned);
        EXPECT_EQ(count.received.bytes,
                  info.received_rows * columns * 2 + info.sent_rows * returned);
        EXPECT_EQ(ranks.info(rank).pairs, info.area);
        EXPECT_LE(ranks.info(rank).steps, whole.stages + 1);
        EXPECT_LE(info.area, whole.largest_area);
        area += info.area;
        rows += info.received_rows;
      }
      EXPECT_EQ(area, whole.area);
      EXPECT_EQ(rows, whole.received_rows);
    }
  }
}

TEST(RingTraffic, ZigzagGivesEveryRankTheSameWork) {
  constexpr std::int32_t kSize = 4;
  constexpr std::int64_t kChunk = 5;
  Case c = make_case(Operation::kForward, TILEWISE_FP32,
                     {1, 2 * kSize * kChunk, 2 * kSize * kChunk, 1, 1, 4});
  c.causal = true;
  Instance instance(c);
  RankedRun ranks(instance.request(), counting(kSize, TILEWISE_SCHEDULE_AUTOMATIC));
  expect_ok(ranks.run(Operation::kForward));
  for (std::int32_t rank = 0; rank < kSize; ++rank) {
    const tilewise_distributed_info& info = ranks.info(rank);
    EXPECT_EQ(info.schedule, TILEWISE_SCHEDULE_ZIGZAG);
    EXPECT_EQ(info.steps, kSize);
    EXPECT_EQ(info.pairs, (2 * kSize - 1) * kChunk * kChunk + kChunk * (kChunk + 1));
  }
}

}  // namespace
}  // namespace tilewise::tests
