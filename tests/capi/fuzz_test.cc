// T14 in every run: the fuzzer's problems from random bytes.
#include <gtest/gtest.h>

#include "fuzz/mutated_problem.h"
#include "registry/support.h"

namespace tilewise::tests {
namespace {

TEST(Reliability, T14_MutatedProblems) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  int called = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(random.between(1, 60)));
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.bits());
    const fuzz::MutatedProblem problem(bytes.data(), bytes.size());
    problem.run();
    called += problem.stays_inside() ? 1 : 0;
  }
  EXPECT_GT(called, 1000);  // else the fuzzer sees validation only
}

}  // namespace
}  // namespace tilewise::tests
