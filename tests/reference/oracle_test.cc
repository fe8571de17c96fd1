// Compares three_pass in fp64, the oracle of every other test, with attention in long double,
// written directly from the semantics.
#include <gtest/gtest.h>

#include <cmath>

#include "brute_force.h"
#include "support.h"
#include "verify/instance.h"

namespace tilewise::reference_test {
namespace {

void expect_close(const char* name, const std::vector<double>& result,
                  const std::vector<double>& expected, double bound) {
  ASSERT_EQ(result.size(), expected.size()) << name;
  double scale = 1;
  for (const double x : expected) {
    if (std::isfinite(x)) scale = std::max(scale, std::abs(x));
  }
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (std::isinf(expected[i])) {
      EXPECT_EQ(result[i], expected[i]) << name << " element " << i;
    } else {
      EXPECT_NEAR(result[i], expected[i], bound * scale) << name << " element " << i;
    }
  }
}

std::vector<double> narrowed(const std::vector<long double>& values) {
  return {values.begin(), values.end()};
}

TEST(Oracle, ForwardIsTheSemantics) {
  for (const Case& c : small_cases()) {
    SCOPED_TRACE(verify::describe(c));
    verify::Instance instance(c);
    BruteForce expected(instance.request());
    expected.run();
    instance.prepare(Operation::kForward);
    run(*rungs()[0].forward, Operation::kForward, instance.request());
    EXPECT_EQ(instance.damage(Operation::kForward), "");
    expect_close("out", numbers(instance.request().out), narrowed(expected.out.values), 1e-14);
    expect_close("lse", numbers(instance.request().lse), narrowed(expected.lse.values), 1e-14);
  }
}

TEST(Oracle, GradientsAreFiniteDifferences) {
  for (const Case& c : small_cases()) {
    SCOPED_TRACE(verify::describe(c));
    verify::Instance instance(c);
    tilewise_problem request = instance.request();
    verify::TensorOwner owner;  // keeps sums in full precision
    for (const auto member : {&tilewise_problem::dsink, &tilewise_problem::dalibi_slopes}) {
      tilewise_tensor& sum = request.*member;
      if (sum.rank != 0) sum = owner.make(TILEWISE_FP64, sum.rank, sum.shape);
    }
    run(*rungs()[0].forward, Operation::kForward, request);
    instance.prepare(Operation::kBackward);
    run(*rungs()[0].backward, Operation::kBackward, request);
    EXPECT_EQ(instance.damage(Operation::kBackward), "");
    BruteForce expected(request);
    const struct {
      const char* name;
      const tilewise_tensor& gradient;
      Array* input;
    } gradients[] = {{"dq", request.dq, &expected.q},
                     {"dk", request.dk, &expected.k},
                     {"dv", request.dv, &expected.v},
                     {"dbias", request.dbias, &expected.bias},
                     {"dsink", request.dsink, &expected.sink},
                     {"dalibi_slopes", request.dalibi_slopes, &expected.slopes}};
    for (const auto& [name, gradient, input] : gradients) {
      if (gradient.rank == 0) continue;
      // A bias in fp32 has its gradient rounded to fp32.
      const double bound = gradient.dtype == TILEWISE_FP32 ? 1e-7 : 1e-11;
      expect_close(name, numbers(gradient), expected.gradient(input), bound);
    }
  }
}

}  // namespace
}  // namespace tilewise::reference_test
