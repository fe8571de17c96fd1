// Attention over ranks: what is refused, and what happens on all ranks when one is refused or
// fails.
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "distributed/magi/attention.h"
#include "distributed/magi/ranks.h"
#include "verify/instance.h"

namespace tilewise::tests {
namespace {

using namespace distributed::magi;
using verify::Case;
using verify::Operation;

class MagiFaults : public ::testing::Test {
 protected:
  MagiFaults() {
    description.dtype = TILEWISE_FP32;
    description.q_packed = description.k_packed = true;
    description.q_len = description.k_len = 16;
    description.head_dim = description.value_dim = 4;
    description.slices = {{0, 16, 0, 16, 1, -1}};
    plan = plan_of(description, {.ranks = 2, .chunk_rows = 4, .stages = 2});
    whole = std::make_unique<verify::Instance>(description);
    ranks = std::make_unique<RankTensors>(Operation::kForward, whole->request(), plan, 0);
  }
  void expect_refused(tilewise_problem problem, const std::vector<std::string>& words,
                      std::int32_t rank = 0) const {
    Attention attention;
    EXPECT_NE(make_attention(Operation::kForward, problem, plan, rank, {}, &attention),
              TILEWISE_OK);
    for (const std::string& word : words) {
      EXPECT_NE(std::string(problem::message()).find(word), std::string::npos)
          << problem::message() << " lacks " << word;
    }
  }

  Case description;
  Plan plan;
  std::unique_ptr<verify::Instance> whole;
  std::unique_ptr<RankTensors> ranks;
};

TEST_F(MagiFaults, UnsupportedOptionsAreRefusedByName) {
  tilewise_problem problem = ranks->problem;
  problem.dropout_p = 0.5;
  expect_refused(problem, {"dropout_p"});
  problem = ranks->problem;
  problem.slices = whole->request().slices;
  expect_refused(problem, {"slices", "whose token plan has the mask"});
  problem = ranks->problem;
  problem.bias = problem.q;
  expect_refused(problem, {"bias"});
  problem = ranks->problem;
  problem.causal = 1;
  expect_refused(problem, {"causal"});
  problem = ranks->problem;
  problem.accumulate = 1;
  expect_refused(problem, {"accumulate"});
  problem = ranks->problem;
  problem.phi = whole->request().seqused_k;
  problem.phi.rank = 1;
  expect_refused(problem, {"phi", "not supported by the balanced schedule"});
  problem = ranks->problem;
  problem.page_table = problem.phi;
  problem.page_table.rank = 2;
  expect_refused(problem, {"page_table", "not supported by the balanced schedule"});
  problem = ranks->problem;
  problem.q.shape[0] = 7;
  expect_refused(problem, {"q", "7 rows", "8 of rank 0"});
  problem = ranks->problem;
  problem.k.device = TILEWISE_CUDA;
  expect_refused(problem, {"k", "device is cuda:0"});
  expect_refused(ranks->problem, {"rank", "2", "0 to 1"}, 2);
  expect_refused(whole->request(), {"slices"});
}

// Runs two ranks, and returns the status and the message of each. `change` may change what a rank
// runs.
template <class Change>
std::vector<std::pair<problem::Status, std::string>> run_changed(const tilewise_problem& whole,
                                                                 const Plan& plan, Change change) {
  distributed::LocalGroup group(2);
  std::vector<std::thread> threads;
  std::vector<std::pair<problem::Status, std::string>> results(2);
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const RankTensors tensors(Operation::kForward, whole, plan, rank);
      Attention attention;
      EXPECT_EQ(make_attention(Operation::kForward, tensors.problem, plan, rank, {}, &attention),
                TILEWISE_OK);
      const verify::Memory workspace(static_cast<std::size_t>(attention.memory.bytes));
      AttentionRun run = {workspace.data(), workspace.bytes(), nullptr};
      tilewise_problem problem = tensors.problem;
      tilewise_communicator communicator = group.communicator(rank);
      if (rank == 1) change(attention, problem, run, communicator);
      const problem::Status status = run_attention(attention, communicator, problem, run);
      const std::string message = problem::message();
      communicator.abort(communicator.self);  // as the end of a process would
      results[static_cast<std::size_t>(rank)] = {status, message};
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// What rank 1 runs, which a test may change.
using Change = std::function<void(Attention& attention, tilewise_problem& problem,
                                  AttentionRun& run, tilewise_communicator& communicator)>;

// A rank that is refused, or has another problem or plan, does not leave the others waiting.
TEST_F(MagiFaults, ADifferenceOfOneRankEndsAllRanks) {
  const struct {
    Change change;
    const char* words[2];  // of the message of each rank
  } cases[] = {
      {[](auto&, tilewise_problem& problem, auto&, auto&) { problem.softmax_scale = 3; },
       {"rank 1 passes another problem: softmax_scale is 3", "softmax_scale is 3"}},
      {[](Attention& attention, auto&, auto&, auto&) { ++attention.plan_hash; },
       {"the contents of the plan differ", "the contents of the plan differ"}},
      {[](auto&, auto&, AttentionRun& run, auto&) { run.workspace_bytes = 8; },
       {"rank 1 has refused", "workspace: 8 bytes"}},
      {[](auto&, tilewise_problem& problem, auto&, auto&) { problem.softcap = 2; },
       {"rank 1 has refused", "softcap: differs from what the plan was made for"}},
  };
  for (const auto& one : cases) {
    const auto results = run_changed(whole->request(), plan, one.change);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(results[rank].first, TILEWISE_INVALID_ARGUMENT);
      EXPECT_NE(results[rank].second.find(one.words[rank]), std::string::npos)
          << results[rank].second << " lacks " << one.words[rank];
    }
  }
}

// An engine that breaks after `good` exchanges.
struct Breaking {
  tilewise_communicator inner;
  std::int32_t good;
  static tilewise_status exchange(void* self, const tilewise_exchange* request,
                                  std::int32_t* failed_rank) {
    Breaking& breaking = *static_cast<Breaking*>(self);
    if (breaking.good-- > 0)
      return breaking.inner.exchange(breaking.inner.self, request, failed_rank);
    *failed_rank = breaking.inner.rank;
    return tilewise_fail(TILEWISE_DEVICE_ERROR, "the link broke");
  }
  static void abort(void* self) {
    Breaking& breaking = *static_cast<Breaking*>(self);
    breaking.inner.abort(breaking.inner.self);
  }
};

// A failure in the middle of a run ends all ranks.
TEST_F(MagiFaults, AFailureOfOneRankEndsAllRanks) {
  for (const std::int32_t good : {0, 1, 2}) {
    Breaking breaking = {{}, good};
    const auto results = run_changed(whole->request(), plan,
                                     [&](auto&, auto&, auto&, tilewise_communicator& communicator) {
                                       breaking.inner = communicator;
                                       communicator.self = &breaking;
                                       communicator.exchange = Breaking::exchange;
                                       communicator.abort = Breaking::abort;
                                     });
    EXPECT_EQ(results[1].first, TILEWISE_DEVICE_ERROR) << good;
    EXPECT_NE(results[1].second.find("the link broke"), std::string::npos) << results[1].second;
    EXPECT_EQ(results[0].first, TILEWISE_REMOTE_ERROR) << good << results[0].second;
  }
}

}  // namespace
}  // namespace tilewise::tests
