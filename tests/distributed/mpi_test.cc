// Communicators over MPI: mpirun starts this program 2 to 4 times, and every rank checks its own
// part. A rank prints what is wrong and ends with status 1.
//
// Usage: mpirun -np N mpi_test TEST, where TEST is one of the tests below
#include <tilewise/tilewise_mpi.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "distributed/ranked_run.h"
#include "registry/support.h"
#include "verify/oracle.h"

namespace tilewise::tests {
namespace {

// The communicator of this process, on MPI_COMM_WORLD.
class World {
 public:
  World() {
    EXPECT_EQ(tilewise_mpi_communicator_create(MPI_COMM_WORLD, &communicator_), TILEWISE_OK);
  }
  ~World() { tilewise_mpi_communicator_destroy(&communicator_); }
  const tilewise_communicator& get() const { return communicator_; }
  std::int32_t rank() const { return communicator_.rank; }
  std::int32_t size() const { return communicator_.size; }

  Status exchange(const std::vector<tilewise_message>& sends,
                  const std::vector<tilewise_message>& receives, double timeout_seconds,
                  std::int32_t* failed_rank) const {
    const tilewise_exchange request = {sends.data(), receives.data(),
                                       static_cast<std::int32_t>(sends.size()),
                                       static_cast<std::int32_t>(receives.size()), timeout_seconds};
    return communicator_.exchange(communicator_.self, &request, failed_rank);
  }

 private:
  tilewise_communicator communicator_;
};

TEST(Mpi, EveryMessageArrives) {
  const World world;
  verify::Random random(7);  // the same numbers on every rank
  for (int round = 0; round < 100; ++round) {
    std::vector<std::vector<char>> buffers;
    std::vector<tilewise_message> sends, receives;
    for (std::int32_t from = 0; from < world.size(); ++from) {
      for (std::int32_t to = 0; to < world.size(); ++to) {
        for (std::int32_t m = 0; m < 2; ++m) {
          const std::int64_t bytes = random.chance(0.1) ? 0 : random.between(1, 100000);
          if (from != world.rank() && to != world.rank()) continue;
          const char value = static_cast<char>(round + from * 16 + to * 4 + m);
          for (const bool send : {true, false}) {
            if ((send ? from : to) != world.rank()) continue;
            buffers.emplace_back(static_cast<std::size_t>(bytes), send ? value : char{0});
            (send ? sends : receives)
                .push_back({buffers.back().data(), bytes, send ? to : from, m % 2});
          }
        }
      }
    }
    std::int32_t failed = -1;
    ASSERT_EQ(world.exchange(sends, receives, 60, &failed), TILEWISE_OK) << problem::message();
    for (const tilewise_message& message : receives) {
      const char value =
          static_cast<char>(round + message.peer * 16 + world.rank() * 4 + message.tag);
      const char* const bytes = static_cast<const char*>(message.data);
      for (std::int64_t i = 0; i < message.bytes; ++i) ASSERT_EQ(bytes[i], value);
    }
  }
}

TEST(Mpi, RanksComputeTheResultsOfOneDevice) {
  const World world;
  verify::Random random(run_seed());
  for (int round = 0; round < 15; ++round) {
    const std::int32_t schedule = round % 5;
    Case c = random_ranked_case(TILEWISE_FP64, schedule, random);
    c.operation = Operation::kBackward;
    const Instance instance(c);
    RankedRun ranks(instance.request(), {world.size(), schedule});
    verify::Oracle oracle(instance.request());
    oracle.run(Operation::kBackward);
    for (const Operation operation : kOperations) {
      const Outcome outcome = ranks.run_one(world.rank(), operation, world.get());
      ASSERT_EQ(outcome.status, TILEWISE_OK) << outcome.message << describe(c);
      expect_equal_results(operation, ranks.local(world.rank()),
                           ranks.expected(world.rank(), oracle.results()), 1e-12, describe(c));
    }
  }
}

// Waits for the end of the others' time limits, then leaves.
void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// The last rank does not call; each of the others waits for the next one.
TEST(Mpi, ASilentRankIsNamed) {
  const World world;
  const std::int32_t silent = world.size() - 1;
  if (world.rank() == silent) {
    sleep_seconds(4);
    std::int32_t failed = -1;
    char byte = 0;
    EXPECT_EQ(world.exchange({{&byte, 1, 0, 0}}, {}, 10, &failed), TILEWISE_REMOTE_ERROR);
    EXPECT_EQ(failed, silent);
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  std::int32_t failed = -1;
  char byte = 0;
  const double limit = world.rank() == 0 ? 0.5 : 1.5;  // who waits longest knows least
  const Status status = world.exchange({}, {{&byte, 1, world.rank() + 1, 0}}, limit, &failed);
  EXPECT_TRUE(status == TILEWISE_TIMEOUT || status == TILEWISE_REMOTE_ERROR);
  EXPECT_EQ(failed, silent) << problem::message();
  EXPECT_LT(seconds_since(start), limit + 3);
}

// A rank passes another problem; all others name it, and the communicator works afterwards.
TEST(Mpi, ADifferentProblemIsNamed) {
  const World world;
  Case c = make_case(Operation::kForward, TILEWISE_FP32, {1, 24, 24, 2, 1, 8});
  const Instance instance(c);
  RankedRun ranks(instance.request(), {world.size(), TILEWISE_SCHEDULE_CONTIGUOUS});
  const bool different = world.rank() == 1;
  ranks.local(world.rank()).causal = different ? 1 : 0;
  const Outcome outcome = ranks.run_one(world.rank(), Operation::kForward, world.get());
  EXPECT_EQ(outcome.status, TILEWISE_INVALID_ARGUMENT);
  // Of two ranks, either may be the one that differs: both name the second.
  EXPECT_EQ(outcome.message.find("rank 1 passes another problem: window_right is 0"), 0U)
      << outcome.message;
  ranks.local(world.rank()).causal = 0;
  EXPECT_EQ(ranks.run_one(world.rank(), Operation::kForward, world.get()).status, TILEWISE_OK);
}

TEST(Mpi, AbortEndsTheWaitOfAllOthers) {
  const World world;
  if (world.rank() == 0) {
    world.get().abort(world.get().self);
    sleep_seconds(0.5);
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  std::vector<char> bytes(1 << 20);
  std::int32_t failed = -1;
  EXPECT_EQ(world.exchange({{bytes.data(), 1 << 20, 0, 0}}, {{bytes.data(), 4, 0, 0}}, 60, &failed),
            TILEWISE_REMOTE_ERROR);
  EXPECT_EQ(failed, 0);
  EXPECT_LT(seconds_since(start), 20);
}

}  // namespace
}  // namespace tilewise::tests

int main(int count, char** arguments) {
  int provided = 0;
  MPI_Init_thread(&count, &arguments, MPI_THREAD_SERIALIZED, &provided);
  testing::InitGoogleTest(&count, arguments);
  if (count == 2) testing::GTEST_FLAG(filter) = std::string("Mpi.") + arguments[1];
  const int failed = RUN_ALL_TESTS();
  MPI_Barrier(MPI_COMM_WORLD);
  std::fflush(stdout);
  // After a failure that was provoked, messages may be left that MPI_Finalize() would wait for.
  if (failed != 0) MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Finalize();
  return 0;
}
