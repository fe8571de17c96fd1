// The fuzzer's problems, made of random bytes, in every run of the tests (T14).
#include <gtest/gtest.h>

#include "fuzz/mutated_problem.h"
#include "registry/support.h"

namespace tilewise::tests {
namespace {

TEST(MutatedProblems, GiveAStatusAndTouchOnlyTheirBuffers) {
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
  EXPECT_GT(called, 1000);  // otherwise the fuzzer would reach validation only
}

}  // namespace
}  // namespace tilewise::tests
