// A rank that never calls, that dies, or that passes another problem: every other rank gets a
// status that names it, within the time limit (T25).
#include <atomic>
#include <cstring>

#include "distributed/ranked_run.h"
#include "registry/support.h"

namespace tilewise::tests {
namespace {

constexpr double kLimit = 0.5;  // seconds
constexpr double kSlack = 5;

Case causal_case() {
  Case c = make_case(Operation::kBackward, TILEWISE_FP32, {1, 64, 64, 2, 1, 8});
  c.causal = true;
  return c;
}

bool names(const Outcome& outcome, std::int32_t rank) {
  return outcome.message.find("rank " + std::to_string(rank)) != std::string::npos;
}

// Lets a rank through a number of exchanges; then it dies: it does nothing any more, says nothing,
// and its call returns only when the others have given it up.
class Dying : public Wrapper {
 public:
  Dying(const tilewise_communicator& inner, int exchanges) : Wrapper(inner), left_(exchanges) {}
  static inline std::atomic<bool> buried{false};

 protected:
  Status exchange(const tilewise_exchange& request, std::int32_t* failed_rank) override {
    if (left_-- > 0) return Wrapper::exchange(request, failed_rank);
    while (!buried) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return problem::fail(TILEWISE_REMOTE_ERROR, "dead");
  }

 private:
  int left_;
};

// Ranks that reach their time limit at different times name the same dead rank, also those that
// wait for others that wait for it.
TEST(Faults, ADeadRankIsNamedByAllOthers) {
  constexpr std::int32_t kSize = 5;
  constexpr std::int32_t kDead = 3;
  Instance instance(causal_case());
  give_forward_results(instance);
  for (const Operation operation : kOperations) {
    const bool forward = operation == Operation::kForward;
    for (const int exchanges : {forward ? 0 : 1, forward ? 2 : 4}) {
      RankedSetup setup;
      setup.size = kSize;
      setup.schedule = TILEWISE_SCHEDULE_ZIGZAG;
      setup.timeout_seconds = kLimit;
      setup.wrap = [&](const tilewise_communicator& inner) -> std::unique_ptr<Wrapper> {
        if (inner.rank == kDead) return std::make_unique<Dying>(inner, exchanges);
        return std::make_unique<Wrapper>(inner);
      };
      RankedRun ranks(instance.request(), setup);
      ranks.set_forward_results(instance.request());
      Dying::buried = false;
      std::thread undertaker([] {
        std::this_thread::sleep_for(std::chrono::duration<double>(2 * kLimit));
        Dying::buried = true;
      });
      const auto start = std::chrono::steady_clock::now();
      const std::vector<Outcome> outcomes = ranks.run(operation);
      EXPECT_LT(seconds_since(start), 2 * kLimit + kSlack);
      undertaker.join();
      int timeouts = 0;
      for (std::int32_t rank = 0; rank < kSize; ++rank) {
        if (rank == kDead) continue;
        const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
        // A rank that needed nothing more of the others may have ended before.
        if (outcome.status == TILEWISE_OK) continue;
        timeouts += outcome.status == TILEWISE_TIMEOUT;
        EXPECT_TRUE(outcome.status == TILEWISE_TIMEOUT || outcome.status == TILEWISE_REMOTE_ERROR);
        EXPECT_NE(outcome.message.find("rank 3 of 5 failed"), std::string::npos)
            << "rank " << rank << " after " << exchanges << " exchanges: " << outcome.message;
      }
      EXPECT_EQ(timeouts, 1) << exchanges;
    }
  }
}

// The others wait for a rank that does not call at all.
TEST(Faults, ARankThatNeverCallsIsNamedByAllOthers) {
  constexpr std::int32_t kSize = 4;
  Instance instance(causal_case());
  RankedRun ranks(instance.request(), {kSize, TILEWISE_SCHEDULE_CONTIGUOUS, kLimit});
  std::vector<Outcome> outcomes(kSize);
  tilewise_distributed_options options = ranks.options();
  const auto start = std::chrono::steady_clock::now();
  run_ranks(kSize, [&](std::int32_t rank) {
    if (rank == 2) return;
    outcomes[static_cast<std::size_t>(rank)] = outcome_of(tilewise_distributed_forward(
        &ranks.local(rank), &options, &ranks.communicator(rank), nullptr));
  });
  EXPECT_LT(seconds_since(start), kLimit + kSlack);
  for (const std::int32_t rank : {0, 1, 3}) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_NE(outcome.status, TILEWISE_OK);
    EXPECT_NE(outcome.message.find("rank 2 of 4 failed"), std::string::npos) << outcome.message;
  }
}

// One rank passes another problem: all name it, nothing else is sent, and the next run works.
TEST(Faults, ADifferentProblemIsNamedBeforeAnythingIsSent) {
  using Change = void (*)(tilewise_problem&, tilewise_distributed_options&);
  static float sinks[2] = {0.5F, 1};
  struct Fault {
    Change change;
    const char* field;
  };
  const Fault faults[] = {
      {[](tilewise_problem& p, tilewise_distributed_options&) { p.causal = 0; }, "window_right"},
      {[](tilewise_problem& p, tilewise_distributed_options&) { p.window_left = 9; },
       "window_left"},
      {[](tilewise_problem& p, tilewise_distributed_options&) { p.softmax_scale = 2; },
       "softmax_scale"},
      {[](tilewise_problem& p, tilewise_distributed_options&) { p.dropout_p = 0.5; }, "dropout_p"},
      {[](tilewise_problem& p, tilewise_distributed_options&) { p.alignment = TILEWISE_TOP_LEFT; },
       "alignment"},
      {[](tilewise_problem& p, tilewise_distributed_options&) {
         const std::int64_t shape[] = {2};
         p.sink = tilewise_contiguous(sinks, TILEWISE_FP32, 1, shape);
       },
       "sink"},
      {[](tilewise_problem& p, tilewise_distributed_options&) { p.q.shape[3] = p.k.shape[3] = 4; },
       "D"},
      {[](tilewise_problem&, tilewise_distributed_options& o) { o.k_len = 63; }, "k_len"},
      {[](tilewise_problem&, tilewise_distributed_options& o) { o.k_len = 70; }, "refused"},
      {[](tilewise_problem&, tilewise_distributed_options& o) {
         o.schedule = TILEWISE_SCHEDULE_STRIPED;
       },
       "schedule"},
      {[](tilewise_problem& p, tilewise_distributed_options&) { p.k.dtype = TILEWISE_BF16; },
       "refused"},
      {[](tilewise_problem& p, tilewise_distributed_options&) { p.q.data = nullptr; }, "refused"}};
  constexpr std::int32_t kSize = 4;
  constexpr std::int32_t kDifferent = 1;
  Instance instance(causal_case());
  RankedSetup setup;
  setup.size = kSize;
  setup.wrap = [](const tilewise_communicator& inner) { return std::make_unique<Counter>(inner); };
  RankedRun ranks(instance.request(), setup);
  for (const Fault& fault : faults) {
    std::vector<Outcome> outcomes(kSize);
    run_ranks(kSize, [&](std::int32_t rank) {
      tilewise_distributed_options options = ranks.options();
      tilewise_problem problem = ranks.local(rank);
      if (rank == kDifferent) fault.change(problem, options);
      outcomes[static_cast<std::size_t>(rank)] = outcome_of(
          tilewise_distributed_forward(&problem, &options, &ranks.communicator(rank), nullptr));
    });
    for (std::int32_t rank = 0; rank < kSize; ++rank) {
      const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
      EXPECT_EQ(outcome.status, TILEWISE_INVALID_ARGUMENT) << fault.field;
      const bool refuses = std::strcmp(fault.field, "refused") == 0;
      if (refuses && rank == kDifferent) continue;  // it has a message of its own
      EXPECT_TRUE(names(outcome, kDifferent)) << fault.field << ": " << outcome.message;
      EXPECT_NE(outcome.message.find(fault.field), std::string::npos) << outcome.message;
      Counter& counter = static_cast<Counter&>(*ranks.wrapper(rank));
      EXPECT_EQ(counter.exchanges, 1) << fault.field;
      counter.exchanges = 0;
    }
    static_cast<Counter&>(*ranks.wrapper(kDifferent)).exchanges = 0;
  }
  for (const Outcome& outcome : ranks.run(Operation::kForward))
    EXPECT_EQ(outcome.status, TILEWISE_OK) << outcome.message;
}

// A kernel that fails on one rank, after the comparison, ends the run of all ranks at once.
TEST(Faults, AFailureInTheMiddleEndsTheRunOfAllRanks) {
  constexpr std::int32_t kSize = 4;
  Instance instance(causal_case());
  RankedSetup setup;
  setup.size = kSize;
  setup.timeout_seconds = 60;
  class Failing : public Wrapper {
   public:
    using Wrapper::Wrapper;

   protected:
    Status exchange(const tilewise_exchange& request, std::int32_t* failed_rank) override {
      if (++exchanges_ == 3) {
        communicator().abort(this);
        return problem::fail(TILEWISE_NO_MEMORY, "no memory");
      }
      return Wrapper::exchange(request, failed_rank);
    }

   private:
    int exchanges_ = 0;
  };
  setup.wrap = [](const tilewise_communicator& inner) -> std::unique_ptr<Wrapper> {
    if (inner.rank == 2) return std::make_unique<Failing>(inner);
    return std::make_unique<Wrapper>(inner);
  };
  RankedRun ranks(instance.request(), setup);
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Outcome> outcomes = ranks.run(Operation::kForward);
  EXPECT_LT(seconds_since(start), 20);
  EXPECT_EQ(outcomes[2].status, TILEWISE_NO_MEMORY);
  for (const std::int32_t rank : {0, 1, 3}) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    if (outcome.status == TILEWISE_OK) continue;  // causal: rank 0 and 1 may have ended before
    EXPECT_EQ(outcome.status, TILEWISE_REMOTE_ERROR);
    EXPECT_TRUE(names(outcome, 2)) << outcome.message;
  }
  EXPECT_EQ(outcomes[3].status, TILEWISE_REMOTE_ERROR);
}

}  // namespace
}  // namespace tilewise::tests
