// Checks statements of README.md and docs/semantics.md about memory against plans.
#include <gtest/gtest.h>
#include <tilewise/tilewise.hpp>

#include <cstdint>
#include <string>

namespace {

constexpr std::int64_t kHeads = 8;
constexpr std::int64_t kDim = 128;
constexpr std::int64_t kDQBytes = kHeads * kDim * 4;  // one row of all heads
constexpr std::int64_t kDeltaBytes = kHeads * 4;

// Self-attention over `length` rows in fp32: shapes only, since a plan reads no data.
tilewise::Problem problem_of(std::int64_t length) {
  tilewise::Problem problem;
  problem.q = tilewise::tensor(nullptr, TILEWISE_FP32, {1, length, kHeads, kDim});
  problem.k = problem.v = problem.out = problem.dout = problem.q;
  problem.dq = problem.dk = problem.dv = problem.q;
  problem.lse = tilewise::tensor(nullptr, TILEWISE_FP32, {1, kHeads, length});
  return problem;
}

std::int64_t workspace(tilewise::Operation operation, const std::string& kernel,
                       std::int64_t length, std::int32_t threads = 2) {
  tilewise::PlanOptions options;
  options.kernel = kernel;
  options.max_concurrency = threads;
  const tilewise::Plan plan(operation, problem_of(length), options);
  return static_cast<std::int64_t>(plan.make_workspace().bytes());
}

TEST(Claims, ForwardMemoryDoesNotGrowWithTheLength) {
  const auto forward = tilewise::Operation::kForward;
  const std::int64_t bytes = workspace(forward, "", 1024);
  EXPECT_LT(bytes, std::int64_t{2} << 20);
  EXPECT_EQ(bytes, workspace(forward, "", std::int64_t{1} << 20));
  EXPECT_GT(workspace(forward, "", 1024, 4), bytes);  // it grows with the number of threads
}

TEST(Claims, BackwardMemoryIsDeltaAndOneCopyOfDQ) {
  const auto backward = tilewise::Operation::kBackward;
  const std::int64_t small = workspace(backward, "", 4096);
  const std::int64_t large = workspace(backward, "", 8192);
  const std::int64_t grown = 4096 * (kDQBytes + kDeltaBytes);
  EXPECT_GE(large - small, grown);
  EXPECT_LE(large - small, grown + grown / 100);
}

TEST(Claims, StandardAttentionStoresScores) {
  const auto forward = tilewise::Operation::kForward;
  EXPECT_GT(workspace(forward, "three_pass", 4096), std::int64_t{4096} * 4096 * 4 * 2);
}

}  // namespace
