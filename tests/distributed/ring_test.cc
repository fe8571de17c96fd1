// Attention on several ranks is that of one (T22), for any number of ranks and any lengths (T24).
#include <set>

#include "distributed/ranked_run.h"
#include "plan/pool.h"
#include "registry/support.h"
#include "verify/oracle.h"

namespace tilewise::tests {
namespace {

constexpr std::int32_t kSizes[] = {1, 2, 3, 4, 5, 7, 8, 11};
constexpr std::int32_t kSchedules[] = {TILEWISE_SCHEDULE_CONTIGUOUS, TILEWISE_SCHEDULE_ZIGZAG,
                                       TILEWISE_SCHEDULE_STRIPED, TILEWISE_SCHEDULE_AUTOMATIC};

// Compares both passes in fp64 with the dense oracle and with one device.
void expect_as_one_device(const Case& c, const RankedSetup& setup) {
  const std::string what = "schedule " + std::to_string(setup.schedule) + " on " +
                           std::to_string(setup.size) + " ranks: " + describe(c);
  Case backward = c;
  backward.operation = Operation::kBackward;
  Instance instance(backward);
  RankedRun ranks(instance.request(), setup);
  if (!run_both(ranks, what)) return;
  verify::Oracle oracle(instance.request());
  oracle.run(Operation::kBackward);
  for (const Operation operation : kOperations) {
    const Status status = operation == Operation::kForward
                              ? tilewise_forward(&instance.request(), nullptr)
                              : tilewise_backward(&instance.request(), nullptr);
    ASSERT_EQ(status, TILEWISE_OK) << problem::message();
    expect_equal_results(operation, ranks.results(), oracle.results(), 1e-12, what);
    expect_equal_results(operation, ranks.results(), instance.request(), 1e-12, what);
  }
}

TEST(Ring, EqualsOneDeviceForEveryNumberOfRanks) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int round = 0; round < 12; ++round) {
    for (const std::int32_t schedule : kSchedules) {
      for (const std::int32_t size : kSizes) {
        expect_as_one_device(random_ring_case(TILEWISE_FP64, schedule, random), {size, schedule});
        if (HasFailure()) return;
      }
    }
  }
}

TEST(Balanced, EqualsOneDeviceForEveryNumberOfRanks) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int round = 0; round < 25; ++round) {
    for (const std::int32_t size : {1, 2, 3, 5, 8}) {
      RankedSetup setup = {size, TILEWISE_SCHEDULE_BALANCED};
      setup.chunk_rows = random.between(0, 6);
      setup.stages = random.between(0, 4);
      expect_as_one_device(random_balanced_case(TILEWISE_FP64, random), setup);
      if (HasFailure()) return;
    }
  }
}

// A case with every kind of sum: of keys, gradients, and of heads over ranks.
Case mixed_case(std::int32_t dtype) {
  Case c = make_case(Operation::kBackward, dtype, {2, 90, 101, 4, 2, 16});
  c.causal = c.sink = c.alibi = true;
  c.window_left = 60;
  c.dropout_p = 0.2;
  c.gradients |= verify::kDAlibiSlopes;
  return c;
}

std::vector<std::vector<std::uint64_t>> bits_of(const Instance& instance,
                                                const RankedSetup& setup) {
  RankedRun ranks(instance.request(), setup);
  run_both(ranks, describe(instance.description()));
  return {output_bits(Operation::kForward, ranks.results()),
          output_bits(Operation::kBackward, ranks.results())};
}

TEST(Ring, BitsAreTheSameFromRunToRun) {
  TILEWISE_TRACE_SEED();
  plan::Pool pool(3);
  const tilewise_executor executor = pool.executor();
  for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16}) {
    const Instance instance(mixed_case(dtype));
    for (const std::int32_t schedule : {TILEWISE_SCHEDULE_CONTIGUOUS, TILEWISE_SCHEDULE_ZIGZAG}) {
      RankedSetup setup = {5, schedule};
      const auto expected = bits_of(instance, setup);
      for (std::uint64_t run = 0; run < 4; ++run) {
        setup.wrap = [&](const tilewise_communicator& inner) {
          return std::make_unique<Shuffler>(
              inner, run_seed() + 100 * run + static_cast<std::uint64_t>(inner.rank));
        };
        setup.executor = run % 2 == 0 ? &executor : nullptr;
        EXPECT_EQ(bits_of(instance, setup), expected) << "run " << run;
      }
    }
  }
}

// A communicator that allows calls from the caller's thread only gives the same bits.
TEST(Ring, OverlapChangesNothing) {
  class OwnThread : public Wrapper {
   public:
    explicit OwnThread(tilewise_communicator inner)
        : Wrapper((inner.calls_from_any_thread = 0, inner)) {}
    std::set<std::thread::id> callers;

   protected:
    Status exchange(const tilewise_exchange& request, std::int32_t* failed_rank) override {
      callers.insert(std::this_thread::get_id());
      return Wrapper::exchange(request, failed_rank);
    }
  };
  const Instance instance(mixed_case(TILEWISE_FP32));
  RankedSetup setup = {4, TILEWISE_SCHEDULE_ZIGZAG};
  const auto expected = bits_of(instance, setup);
  setup.wrap = [](const tilewise_communicator& inner) {
    return std::make_unique<OwnThread>(inner);
  };
  RankedRun ranks(instance.request(), setup);
  for (const Outcome& outcome : ranks.run(Operation::kForward))
    ASSERT_EQ(outcome.status, TILEWISE_OK) << outcome.message;
  for (std::int32_t rank = 0; rank < 4; ++rank)
    EXPECT_EQ(static_cast<OwnThread&>(*ranks.wrapper(rank)).callers.size(), 1U);
  EXPECT_EQ(output_bits(Operation::kForward, ranks.results()), expected[0]);
}

// Keys that one rank alone holds matter to the gradients of every rank that sees them.
TEST(Ring, NoRankUsesOldKeys) {
  Case c = make_case(Operation::kBackward, TILEWISE_FP64, {1, 48, 48, 2, 1, 8});
  Instance instance(c);
  RankedRun before(instance.request(), {4, TILEWISE_SCHEDULE_CONTIGUOUS});
  ASSERT_TRUE(run_both(before, describe(c)));
  for (std::int32_t changed = 0; changed < 4; ++changed) {
    RankedRun after(instance.request(), {4, TILEWISE_SCHEDULE_CONTIGUOUS});
    static_cast<double*>(after.local(changed).k.data)[0] += 1;
    ASSERT_TRUE(run_both(after, describe(c)));
    for (std::int32_t rank = 0; rank < 4; ++rank)
      EXPECT_GT(largest_difference(after.local(rank).dq, before.local(rank).dq), 0) << rank;
  }
}

TEST(Ring, DocumentsMayBeShorterThanTheNumberOfRanks) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed() + 5);
  for (const std::int32_t schedule : kSchedules) {
    for (int round = 0; round < 6; ++round) {
      Case c = random_ring_case(TILEWISE_FP64, schedule, random);
      c.q_packed = c.k_packed = true;
      c.used.clear();
      c.used_q.clear();
      c.bias.present = c.mask.present = false;
      c.batch = random.between(1, 9);
      c.q_lengths.clear();
      for (std::int64_t b = 0; b < c.batch; ++b) c.q_lengths.push_back(random.between(0, 5));
      c.k_lengths = c.q_lengths;
      expect_as_one_device(c, {8, schedule});
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
