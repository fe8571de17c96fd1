#include "distributed/ranked_run.h"
#include "registry/support.h"
#include "verify/accuracy.h"
#include "verify/oracle.h"
#include "verify/plain.h"

namespace tilewise::tests {
namespace {

std::string text_of(const verify::Case& c, const RankedSetup& setup) {
  return std::to_string(setup.size) + " ranks, schedule " + std::to_string(setup.schedule) + ": " +
         describe(c);
}

bool succeed(const std::vector<Outcome>& outcomes, const std::string& what) {
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.status, TILEWISE_OK) << outcome.message << "\n" << what;
    if (outcome.status != TILEWISE_OK) return false;
  }
  return true;
}

}  // namespace

bool run_both(RankedRun& ranks, const std::string& what) {
  for (const Operation operation : kOperations) {
    if (!succeed(ranks.run(operation), what)) return false;
  }
  return true;
}

void expect_exact(verify::Case c, const RankedSetup& setup) {
  c.operation = Operation::kBackward;
  Instance instance(c);
  verify::Oracle oracle(instance.request());
  oracle.run(c.operation);
  RankedRun ranks(instance.request(), setup);
  const std::string what = text_of(c, setup);
  if (!run_both(ranks, what)) return;
  for (const Operation operation : kOperations)
    expect_equal_results(operation, ranks.results(), oracle.results(), 1e-12, what);
}

void expect_accurate(verify::Case c, Operation operation, const RankedSetup& setup, int orders) {
  c.operation = operation;
  Instance instance(c);
  verify::Oracle oracle(instance.request());
  oracle.run(operation);
  instance.set_forward_results(oracle.results());
  std::vector<std::unique_ptr<verify::Plain>> plain;
  std::vector<const tilewise_problem*> results;
  for (verify::SumOrder order = 0; order < orders; ++order) {
    plain.push_back(std::make_unique<verify::Plain>(instance.request(), order));
    plain.back()->run(operation);
    results.push_back(&plain.back()->results());
  }
  RankedRun ranks(instance.request(), setup);
  ranks.set_forward_results(instance.request());
  const std::string what = text_of(c, setup);
  if (!succeed(ranks.run(operation), what)) return;
  for (const verify::TensorReport& report :
       verify::check_accuracy(operation, ranks.results(), oracle.results(), results, {}))
    EXPECT_TRUE(report.passed) << report.reason << ", " << what;
}

}  // namespace tilewise::tests
