// Ranks whose tensors are on CUDA devices, as threads of one process: results are those of one
// device, and failures are found, on GPUs and on the emulated device.
#include <algorithm>

#include "cuda/host/runtime.h"
#include "distributed/ranked_run.h"
#include "distributed/ring_plan.h"
#include "registry/support.h"
#include "verify/device_copy.h"

namespace tilewise::tests {
namespace {

constexpr std::int32_t kAllSchedules[] = {TILEWISE_SCHEDULE_CONTIGUOUS, TILEWISE_SCHEDULE_ZIGZAG,
                                          TILEWISE_SCHEDULE_STRIPED, TILEWISE_SCHEDULE_BALANCED};

constexpr int kSums = 2;  // of plain attention, for the accuracy rule

// Ranks share the devices that there are.
RankedSetup setup_of(std::int32_t size, std::int32_t schedule) {
  RankedSetup setup;
  setup.size = size;
  setup.schedule = schedule;
  for (std::int32_t rank = 0; rank < size; ++rank)
    setup.devices.push_back(rank % std::max(cuda::device_count(), 1));
  return setup;
}

class DeviceRanks : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_F(DeviceRanks, EqualOneDeviceInFp64) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int round = 0; round < 4; ++round) {
    for (const std::int32_t schedule : kAllSchedules) {
      for (const std::int32_t size : {1, 2, 3, 5}) {
        expect_exact(random_ranked_case(TILEWISE_FP64, schedule, random), setup_of(size, schedule));
        if (HasFailure()) return;
      }
    }
  }
}

// Masks whose steps are one call: causal and right windows, documents and lengths in use.
TEST_F(DeviceRanks, EqualOneDeviceWhereRangesAreJoined) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed() + 2);
  for (int round = 0; round < 24; ++round) {
    const std::int32_t schedule =
        random.pick({TILEWISE_SCHEDULE_ZIGZAG, TILEWISE_SCHEDULE_CONTIGUOUS});
    Case c = random_ring_case(TILEWISE_FP64, schedule, random);
    c.window_left = -1;
    c.dropout_p = 0;
    c.alibi = c.bias.present = c.mask.present = false;
    expect_exact(c, setup_of(static_cast<std::int32_t>(random.between(2, 5)), schedule));
    if (HasFailure()) return;
  }
}

// Under a causal zigzag schedule every step is one call of an ordinary mask.
TEST_F(DeviceRanks, ComputeAStepOfACausalZigzagInOneCall) {
  for (const std::int32_t size : {1, 2, 4}) {
    Case c = make_case(Operation::kBackward, TILEWISE_BF16, {2, 16 * size, 16 * size, 2, 1, 16});
    c.causal = true;
    const Instance instance(c);
    RankedRun ranks(instance.request(), setup_of(size, TILEWISE_SCHEDULE_ZIGZAG));
    for (std::int32_t rank = 0; rank < size; ++rank) {
      for (const Operation operation : kOperations) {
        const verify::DeviceCopy copy(operation, ranks.local(rank));
        distributed::RingOptions options;
        options.lengths = {c.q_len, c.k_len};
        options.schedule = distributed::Schedule::kZigzag;
        distributed::RingPlan plan;
        ASSERT_EQ(make_ring_plan(operation, copy.request(), options, rank, size, &plan),
                  TILEWISE_OK)
            << problem::message();
        EXPECT_EQ(plan.calls.size(), static_cast<std::size_t>(size));
        EXPECT_TRUE(plan.calls[0].begins);
        for (const distributed::Call& call : plan.calls) EXPECT_EQ(call.parts, -1);
      }
    }
  }
}

// Tiles of the fast kernels: causal with GQA, lengths that ranks do not divide, windows, documents
// and slices.
std::vector<std::pair<Case, std::int32_t>> tiled_cases(std::int32_t dtype) {
  std::vector<std::pair<Case, std::int32_t>> cases;
  Case causal = make_case(Operation::kForward, dtype, {2, 203, 203, 4, 2, 64});
  causal.causal = true;
  cases.emplace_back(causal, TILEWISE_SCHEDULE_ZIGZAG);
  Case window = causal;
  window.window_left = 60;
  window.sink = true;
  cases.emplace_back(window, TILEWISE_SCHEDULE_CONTIGUOUS);
  Case documents = make_case(Operation::kForward, dtype, {4, 0, 0, 4, 1, 64});
  documents.q_packed = documents.k_packed = documents.causal = true;
  documents.q_lengths = documents.k_lengths = {1, 150, 0, 77};
  cases.emplace_back(documents, TILEWISE_SCHEDULE_ZIGZAG);
  cases.emplace_back(documents, TILEWISE_SCHEDULE_BALANCED);
  Case slices = make_case(Operation::kForward, dtype, {1, 190, 230, 2, 2, 64});
  slices.slices = {{0, 90, 0, 60, 0, -1}, {0, 90, 60, 160, 1, -1}, {100, 190, 40, 230, 3, -1}};
  cases.emplace_back(slices, TILEWISE_SCHEDULE_BALANCED);
  return cases;
}

TEST_F(DeviceRanks, FollowTheAccuracyRule) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16}) {
    for (const auto& [c, schedule] : tiled_cases(dtype)) {
      for (const Operation operation : kOperations)
        expect_accurate(c, operation, setup_of(2, schedule), kSums);
    }
  }
}

// More ranks than tokens: some have no queries, some no keys.
TEST_F(DeviceRanks, MayBeEmpty) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t schedule : {TILEWISE_SCHEDULE_ZIGZAG, TILEWISE_SCHEDULE_BALANCED}) {
    Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, 3, 5, 2, 1, 16});
    c.causal = true;
    for (const Operation operation : kOperations)
      expect_accurate(c, operation, setup_of(8, schedule), kSums);
  }
}

TEST_F(DeviceRanks, GiveTheSameBitsFromRunToRun) {
  TILEWISE_TRACE_SEED();
  Case c = make_case(Operation::kBackward, TILEWISE_BF16, {1, 150, 150, 4, 2, 64});
  c.causal = true;
  c.deterministic = true;
  const Instance instance(c);
  std::vector<std::uint64_t> bits[2][2];
  for (auto& run : bits) {
    RankedRun ranks(instance.request(), setup_of(3, TILEWISE_SCHEDULE_ZIGZAG));
    ASSERT_TRUE(run_both(ranks, describe(c)));
    for (const Operation operation : kOperations)
      run[static_cast<int>(operation)] = output_bits(operation, ranks.results());
  }
  EXPECT_EQ(bits[0][0], bits[1][0]);
  EXPECT_EQ(bits[0][1], bits[1][1]);
}

bool names(const Outcome& outcome, const std::string& text) {
  return outcome.message.find(text) != std::string::npos;
}

Case small_case() {
  Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, 64, 64, 2, 1, 16});
  c.causal = true;
  return c;
}

// Before anything is sent every rank learns of it, and the group remains usable.
TEST_F(DeviceRanks, RefuseDifferentProblems) {
  const Instance instance(small_case());
  RankedRun ranks(instance.request(), setup_of(3, TILEWISE_SCHEDULE_ZIGZAG));
  ranks.local(1).window_left = 9;
  for (const Outcome& outcome : ranks.run(Operation::kForward)) {
    EXPECT_EQ(outcome.status, TILEWISE_INVALID_ARGUMENT) << outcome.message;
    EXPECT_TRUE(names(outcome, "rank 1 passes another problem: window_left is 9, on rank 0 -1"))
        << outcome.message;
  }
  ranks.local(1).window_left = -1;
  for (const Outcome& outcome : ranks.run(Operation::kForward))
    EXPECT_EQ(outcome.status, TILEWISE_OK) << outcome.message;
}

// A rank that never calls is named by the others within the time limit.
TEST_F(DeviceRanks, FindASilentRank) {
  const Instance instance(small_case());
  RankedSetup setup = setup_of(3, TILEWISE_SCHEDULE_ZIGZAG);
  setup.timeout_seconds = 0.3;
  RankedRun ranks(instance.request(), setup);
  Outcome outcomes[2];
  run_ranks(2, [&](std::int32_t rank) {
    outcomes[rank] = ranks.run_one(rank, Operation::kForward, ranks.communicator(rank));
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.status == TILEWISE_TIMEOUT || outcome.status == TILEWISE_REMOTE_ERROR);
    EXPECT_TRUE(names(outcome, "rank 2")) << outcome.message;
  }
}

// A rank that stops between two steps is named, too: by the exchange of the next one.
TEST_F(DeviceRanks, FindARankThatStops) {
  class Stopping : public Wrapper {
   public:
    using Wrapper::Wrapper;
    tilewise_communicator stopping(tilewise_communicator inner) {
      inner_ = inner;
      tilewise_communicator outer = inner;
      outer.self = this;
      outer.exchange = [](void* self, const tilewise_exchange* request, std::int32_t* failed) {
        auto& own = *static_cast<Stopping*>(self);
        return own.inner_.exchange(own.inner_.self, request, failed);
      };
      outer.abort = [](void* self) {
        auto& own = *static_cast<Stopping*>(self);
        own.inner_.abort(own.inner_.self);
      };
      outer.start = [](void*, const tilewise_exchange*, void*, std::int32_t* failed) {
        *failed = 1;
        return problem::fail(TILEWISE_DEVICE_ERROR, "stops here");
      };
      return outer;
    }

   private:
    tilewise_communicator inner_ = {};
  };
  const Instance instance(small_case());
  RankedRun ranks(instance.request(), setup_of(3, TILEWISE_SCHEDULE_ZIGZAG));
  Stopping stopping(ranks.communicator(1));
  Outcome outcomes[3];
  run_ranks(3, [&](std::int32_t rank) {
    outcomes[rank] = ranks.run_one(
        rank, Operation::kForward,
        rank == 1 ? stopping.stopping(ranks.communicator(1)) : ranks.communicator(rank));
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_NE(outcome.status, TILEWISE_OK);
    EXPECT_TRUE(names(outcome, "rank 1")) << outcome.message;
  }
}

// A communicator for host memory takes no tensors of a device.
TEST_F(DeviceRanks, NeedACommunicatorForDevices) {
  const Instance instance(small_case());
  RankedSetup setup = setup_of(2, TILEWISE_SCHEDULE_ZIGZAG);
  distributed::LocalGroup group(2);
  setup.communicator = [&](std::int32_t rank) { return group.communicator(rank); };
  RankedRun ranks(instance.request(), setup);
  for (const Outcome& outcome : ranks.run(Operation::kForward)) {
    EXPECT_EQ(outcome.status, TILEWISE_UNSUPPORTED);
    EXPECT_TRUE(names(outcome, "communicator: takes host memory only, but q is on cuda:"))
        << outcome.message;
  }
}

TEST_F(DeviceRanks, AreOfDevicesThatExist) {
  tilewise_local_group* group = nullptr;
  const std::int32_t devices[] = {0, 4711};
  EXPECT_EQ(tilewise_local_group_create_cuda(devices, 2, &group), TILEWISE_UNSUPPORTED);
  EXPECT_NE(std::string(problem::message()).find("4711"), std::string::npos);
  EXPECT_EQ(tilewise_local_group_create_cuda(nullptr, 2, &group), TILEWISE_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace tilewise::tests
