// Ranks over NCCL: each on a GPU of its own, or on the emulated device over a library with NCCL's
// names (fake_nccl.cc), which $TILEWISE_NCCL_LIBRARY names.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <tilewise/tilewise_distributed.hpp>

#include "cuda/host/runtime.h"
#include "cuda/host/streams.h"
#include "distributed/ranked_run.h"
#include "registry/support.h"
#include "verify/device_copy.h"
#include "verify/oracle.h"

namespace tilewise::tests {
namespace {

using verify::DeviceMemory;

// With the library of the tests, ranks share a device.
bool is_fake() {
  const char* const name = std::getenv("TILEWISE_NCCL_LIBRARY");
  return name != nullptr && std::strstr(name, "fake_nccl") != nullptr;
}

std::vector<std::int32_t> devices_of_ranks() {
  constexpr std::int32_t kMost = 4;
  std::vector<std::int32_t> devices;
  const std::int32_t count = is_fake() ? 3 : std::min(cuda::device_count(), kMost);
  for (std::int32_t rank = 0; rank < count; ++rank) devices.push_back(is_fake() ? 0 : rank);
  return devices;
}

class NcclRanks : public testing::Test {
 protected:
  void SetUp() override {
    devices_ = devices_of_ranks();
    if (devices_.size() < 2) GTEST_SKIP() << "fewer than two CUDA devices";
    char id[TILEWISE_NCCL_ID_BYTES];
    if (tilewise_nccl_unique_id(id) == TILEWISE_UNSUPPORTED) GTEST_SKIP() << problem::message();
    ranks_ = join();
  }

  std::int32_t size() const { return static_cast<std::int32_t>(devices_.size()); }

  using Communicators = std::vector<std::unique_ptr<tilewise::NcclCommunicator>>;
  Communicators join() const {
    Communicators ranks(devices_.size());
    const auto id = tilewise::NcclCommunicator::unique_id();
    run_ranks(size(), [&](std::int32_t rank) {
      const auto r = static_cast<std::size_t>(rank);
      ranks[r] = std::make_unique<tilewise::NcclCommunicator>(id, size(), rank, devices_[r]);
    });
    return ranks;
  }

  tilewise_communicator communicator(std::int32_t rank) const {
    return ranks_[static_cast<std::size_t>(rank)]->communicator();
  }

  RankedSetup setup(std::int32_t schedule) const {
    RankedSetup result;
    result.size = size();
    result.schedule = schedule;
    result.devices = devices_;
    result.communicator = [this](std::int32_t rank) { return communicator(rank); };
    return result;
  }

  std::vector<std::int32_t> devices_;
  Communicators ranks_;
};

// Messages of one peer with several tags, in another order on each side, and of no bytes.
TEST_F(NcclRanks, ExchangeHostMemory) {
  run_ranks(size(), [&](std::int32_t rank) {
    const std::int32_t to = (rank + 1) % size();
    const std::int32_t from = (rank + size() - 1) % size();
    const std::int32_t own[2] = {100 + rank, 200 + rank};
    std::int32_t got[2] = {0, 0};
    const tilewise_message sends[] = {{const_cast<std::int32_t*>(own + 1), 4, to, 7},
                                      {nullptr, 0, to, 9},
                                      {const_cast<std::int32_t*>(own), 4, to, 3}};
    const tilewise_message receives[] = {
        {got, 4, from, 3}, {got + 1, 4, from, 7}, {nullptr, 0, from, 9}};
    const tilewise_exchange request = {sends, receives, 3, 3, 30};
    const tilewise_communicator own_rank = communicator(rank);
    std::int32_t failed = -1;
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(own_rank.exchange(own_rank.self, &request, &failed), TILEWISE_OK)
          << problem::message();
      EXPECT_EQ(got[0], 100 + from);
      EXPECT_EQ(got[1], 200 + from);
    }
  });
}

// More exchanges than the engine keeps account of, in device memory.
TEST_F(NcclRanks, ExchangeDeviceMemoryManyTimes) {
  run_ranks(size(), [&](std::int32_t rank) {
    const std::int32_t device = devices_[static_cast<std::size_t>(rank)];
    const std::int32_t to = (rank + 1) % size();
    const std::int32_t from = (rank + size() - 1) % size();
    const DeviceMemory memory(device, 16);
    cuda::Exchange own(device);
    const tilewise_communicator own_rank = communicator(rank);
    std::int64_t number = rank;
    EXPECT_EQ(cuda::send(device, memory.data(), &number, 8, own.stream()), TILEWISE_OK);
    std::int32_t failed = -1;
    constexpr int kRounds = 600;
    for (int round = 0; round < kRounds; ++round) {
      std::byte* const source = memory.data() + round % 2 * 8;
      std::byte* const target = memory.data() + (round + 1) % 2 * 8;
      const tilewise_message send = {source, 8, to, 0};
      const tilewise_message receive = {target, 8, from, 0};
      const tilewise_exchange request = {&send, &receive, 1, 1, 30};
      ASSERT_EQ(own_rank.start(own_rank.self, &request, own.stream(), &failed), TILEWISE_OK)
          << problem::message();
      ASSERT_EQ(own_rank.finish(own_rank.self, own.stream(), &failed), TILEWISE_OK);
    }
    EXPECT_EQ(cuda::copy(device, &number, memory.data() + kRounds % 2 * 8, 8, own.stream()),
              TILEWISE_OK);
    EXPECT_EQ(number, ((rank - kRounds) % size() + size()) % size());
    ranks_[static_cast<std::size_t>(rank)]->check_exchanges();
  });
}

TEST_F(NcclRanks, EqualOneDeviceInFp64) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed() + 1);
  for (int round = 0; round < 3; ++round) {
    for (const std::int32_t schedule :
         {TILEWISE_SCHEDULE_ZIGZAG, TILEWISE_SCHEDULE_CONTIGUOUS, TILEWISE_SCHEDULE_BALANCED}) {
      expect_exact(random_ranked_case(TILEWISE_FP64, schedule, random), setup(schedule));
      if (HasFailure()) return;
    }
  }
}

// The bits are those of threads that copy from device to device.
TEST_F(NcclRanks, GiveTheBitsOfThreads) {
  TILEWISE_TRACE_SEED();
  Case c = make_case(Operation::kBackward, TILEWISE_BF16, {1, 170, 170, 4, 2, 64});
  c.causal = c.deterministic = true;
  const Instance instance(c);
  RankedSetup threads = setup(TILEWISE_SCHEDULE_ZIGZAG);
  threads.communicator = {};
  RankedRun over_nccl(instance.request(), setup(TILEWISE_SCHEDULE_ZIGZAG));
  RankedRun over_threads(instance.request(), threads);
  ASSERT_TRUE(run_both(over_nccl, "over NCCL"));
  ASSERT_TRUE(run_both(over_threads, "over threads"));
  for (const Operation operation : kOperations) {
    EXPECT_EQ(output_bits(operation, over_nccl.results()),
              output_bits(operation, over_threads.results()));
  }
}

TEST_F(NcclRanks, RefuseDifferentProblems) {
  const Instance instance(make_case(Operation::kForward, TILEWISE_BF16, {1, 64, 64, 2, 1, 16}));
  RankedRun ranks(instance.request(), setup(TILEWISE_SCHEDULE_ZIGZAG));
  ranks.local(1).window_left = 9;
  for (const Outcome& outcome : ranks.run(Operation::kForward)) {
    EXPECT_EQ(outcome.status, TILEWISE_INVALID_ARGUMENT) << outcome.message;
    EXPECT_NE(outcome.message.find("rank 1 passes another problem: window_left is 9"),
              std::string::npos)
        << outcome.message;
  }
  ranks.local(1).window_left = -1;
  for (const Outcome& outcome : ranks.run(Operation::kForward))
    EXPECT_EQ(outcome.status, TILEWISE_OK) << outcome.message;
}

// A rank that never calls: the others end within the time limit, and so do all later calls.
TEST_F(NcclRanks, FindASilentRank) {
  const Instance instance(make_case(Operation::kForward, TILEWISE_BF16, {1, 64, 64, 2, 1, 16}));
  RankedSetup limited = setup(TILEWISE_SCHEDULE_ZIGZAG);
  limited.timeout_seconds = 0.5;
  RankedRun ranks(instance.request(), limited);
  const auto start = std::chrono::steady_clock::now();
  run_ranks(size() - 1, [&](std::int32_t rank) {
    for (int call = 0; call < 2; ++call) {
      const Outcome outcome = ranks.run_one(rank, Operation::kForward, communicator(rank));
      EXPECT_TRUE(outcome.status == TILEWISE_TIMEOUT || outcome.status == TILEWISE_REMOTE_ERROR)
          << outcome.message;
    }
    EXPECT_THROW(ranks_[static_cast<std::size_t>(rank)]->check_exchanges(), tilewise::Error);
  });
  EXPECT_LT(seconds_since(start), 20);
}

// An ncclComm_t of the program's is used, and remains.
TEST_F(NcclRanks, UseTheCallersCommunicator) {
  const char* const given = std::getenv("TILEWISE_NCCL_LIBRARY");
  void* const library = dlopen(given != nullptr ? given : "libnccl.so.2", RTLD_NOW);
  ASSERT_NE(library, nullptr);
  struct Id {
    char bytes[TILEWISE_NCCL_ID_BYTES];
  } id;
  const auto init =
      reinterpret_cast<int (*)(void**, int, Id, int)>(dlsym(library, "ncclCommInitRank"));
  const auto destroy = reinterpret_cast<int (*)(void*)>(dlsym(library, "ncclCommDestroy"));
  ASSERT_EQ(tilewise_nccl_unique_id(&id), TILEWISE_OK);
  std::vector<void*> comms(devices_.size());
  Communicators own(devices_.size());
  run_ranks(size(), [&](std::int32_t rank) {
    const auto r = static_cast<std::size_t>(rank);
    EXPECT_EQ(cuda::use_device(devices_[r]), TILEWISE_OK);
    EXPECT_EQ(init(&comms[r], size(), id, rank), 0);
    own[r] = std::make_unique<tilewise::NcclCommunicator>(comms[r]);
    EXPECT_EQ(own[r]->communicator().rank, rank);
    EXPECT_EQ(own[r]->communicator().size, size());
    EXPECT_EQ(own[r]->communicator().device_index, devices_[r]);
  });
  Case c = make_case(Operation::kForward, TILEWISE_FP64, {1, 40, 40, 2, 1, 8});
  c.causal = true;
  Instance instance(c);
  verify::Oracle oracle(instance.request());
  oracle.run(c.operation);
  RankedSetup given_ranks = setup(TILEWISE_SCHEDULE_ZIGZAG);
  given_ranks.communicator = [&](std::int32_t rank) {
    return own[static_cast<std::size_t>(rank)]->communicator();
  };
  RankedRun ranks(instance.request(), given_ranks);
  for (const Outcome& outcome : ranks.run(Operation::kForward))
    ASSERT_EQ(outcome.status, TILEWISE_OK) << outcome.message;
  expect_equal_results(Operation::kForward, ranks.results(), oracle.results(), 1e-12, describe(c));
  own.clear();
  run_ranks(size(), [&](std::int32_t rank) {
    EXPECT_EQ(destroy(comms[static_cast<std::size_t>(rank)]), 0);
  });
}

// The C++ interface, which allocates the workspace.
TEST_F(NcclRanks, ComputeInOneCall) {
  constexpr std::int64_t kLength = 50;
  const auto id = tilewise::NcclCommunicator::unique_id();
  Case c = make_case(Operation::kForward, TILEWISE_FP32, {1, kLength, kLength, 2, 1, 16});
  c.causal = true;
  Instance instance(c);
  verify::Oracle oracle(instance.request());
  oracle.run(c.operation);
  RankedRun ranks(instance.request(), setup(TILEWISE_SCHEDULE_ZIGZAG));
  run_ranks(size(), [&, size = size()](std::int32_t rank) {
    const std::int32_t device = devices_[static_cast<std::size_t>(rank)];
    verify::DeviceCopy copy(c.operation, ranks.local(rank), device);
    struct {
      tilewise::Problem problem;
    } shard;
    static_cast<tilewise_problem&>(shard.problem) = copy.request();
    const cuda::Exchange own(device);
    tilewise_executor executor;
    tilewise_executor_init(&executor);
    executor.stream = own.stream();
    tilewise::DistributedOptions options;
    options.q_len = options.k_len = kLength;
    options.schedule = tilewise::Schedule::kZigzag;
    EXPECT_EQ(cuda::synchronise(device, nullptr), TILEWISE_OK);
    // snippet: nccl
    const tilewise::NcclCommunicator nccl(id, size, rank, device);  // id: of one rank, given to all
    shard.problem.causal = 1;
    tilewise::forward(shard.problem, options, nccl.communicator(), &executor);
    // end of snippet
    EXPECT_EQ(cuda::synchronise(device, executor.stream), TILEWISE_OK);
    nccl.check_exchanges();
    EXPECT_EQ(copy.fetch(), "");
    const tilewise_problem expected = ranks.expected(rank, oracle.results());
    EXPECT_LE(largest_difference(ranks.local(rank).out, expected.out), 1e-5);
  });
}

TEST_F(NcclRanks, RefuseBadArguments) {
  tilewise_nccl_communicator* nccl = nullptr;
  char id[TILEWISE_NCCL_ID_BYTES] = {};
  EXPECT_EQ(tilewise_nccl_unique_id(nullptr), TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(tilewise_nccl_communicator_wrap(nullptr, &nccl), TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(tilewise_nccl_communicator_create(nullptr, 2, 0, 0, &nccl), TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(tilewise_nccl_communicator_create(id, 0, 0, 0, &nccl), TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(tilewise_nccl_communicator_create(id, 2, 2, 0, &nccl), TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(tilewise_nccl_communicator_create(id, 2, 0, 4711, &nccl), TILEWISE_UNSUPPORTED);
  EXPECT_EQ(tilewise_nccl_communicator_status(nullptr), TILEWISE_INVALID_ARGUMENT);
  tilewise_nccl_communicator_destroy(nullptr);
}

}  // namespace
}  // namespace tilewise::tests
