// The accuracy rule passes right results and fails wrong ones.
#include "verify/accuracy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "problem/tensors.h"
#include "verify/instance.h"
#include "verify/judge.h"
#include "verify/oracle.h"
#include "verify/random.h"
#include "verify/tensor.h"

namespace tilewise::verify {
namespace {

constexpr std::int64_t kRows = 4000;
constexpr std::int64_t kColumns = 8;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Problems that have only an `out`, filled element by element.
struct Answers {
  using Fill = std::function<double(std::int64_t, double exact)>;

  tilewise_problem make(std::int32_t dtype, const Fill& fill) {
    const std::int64_t shape[] = {1, kRows, 1, kColumns};
    tilewise_problem problem;
    tilewise_problem_init(&problem);
    problem.out = owner.make(dtype, 4, shape);
    Random random(5);
    for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
      write_element(problem.out, i, fill(i, random.normal()));
    }
    return problem;
  }

  TensorReport judge(std::int32_t dtype, const Fill& result, const Fill& plain) {
    const tilewise_problem problems[] = {
        make(dtype, result), make(TILEWISE_FP64, [](std::int64_t, double x) { return x; }),
        make(dtype, plain)};
    const auto reports = check_accuracy(problem::Operation::kForward, problems[0], problems[1],
                                        {&problems[2]}, {AccuracyOptions::Independent::kElements});
    EXPECT_EQ(reports.size(), 1u);
    return reports.front();
  }

  TensorOwner owner;
};

double exact(std::int64_t, double x) { return x; }
double alternately(std::int64_t i, double x, double error) { return x + (i % 2 ? error : -error); }

// Rounds towards zero, as a kernel that drops the low bits would.
double truncated(std::int64_t, double x) {
  const double nearest = rounded(TILEWISE_BF16, x);
  if (std::abs(nearest) <= std::abs(x)) return nearest;
  return nearest - std::copysign(ulp(TILEWISE_BF16, x), x);
}

TEST(Accuracy, RoundingToNearestPasses) {
  Answers answers;
  for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16}) {
    const TensorReport report = answers.judge(dtype, exact, exact);
    EXPECT_TRUE(report.passed) << report.reason;
    EXPECT_LE(report.ratio(), 1);
    EXPECT_GT(report.rms_error, 0);
  }
}

TEST(Accuracy, TruncationFails) {
  Answers answers;
  const TensorReport report = answers.judge(TILEWISE_BF16, truncated, exact);
  EXPECT_FALSE(report.passed);
  EXPECT_NE(report.reason.find("towards zero"), std::string::npos) << report.reason;
}

TEST(Accuracy, ShiftedResultsFail) {
  Answers answers;
  const auto noise = [](std::int64_t i, double x) { return alternately(i, x, 1e-3); };
  const auto shifted = [](std::int64_t i, double x) { return alternately(i, x, 1e-3) + 2e-4; };
  EXPECT_TRUE(answers.judge(TILEWISE_FP32, noise, noise).passed);
  const TensorReport report = answers.judge(TILEWISE_FP32, shifted, noise);
  EXPECT_FALSE(report.passed);
  EXPECT_NE(report.reason.find("mean error"), std::string::npos) << report.reason;
}

TEST(Accuracy, TheLimitIsTwicePlainsErrorAndTwoUlps) {
  Answers answers;
  const auto plain = [](std::int64_t i, double x) { return alternately(i, x, 1e-3); };
  const auto inside = [](std::int64_t i, double x) { return alternately(i, x, 1.99e-3); };
  const auto outside = [](std::int64_t i, double x) { return alternately(i, x, 2.01e-3); };
  EXPECT_TRUE(answers.judge(TILEWISE_FP32, inside, plain).passed);
  const TensorReport report = answers.judge(TILEWISE_FP32, outside, plain);
  EXPECT_FALSE(report.passed);
  EXPECT_GT(report.ratio(), 1);
  EXPECT_NEAR(report.plain_error, 1e-3, 1e-6);
}

TEST(Accuracy, OneWrongElementFails) {
  Answers answers;
  for (const double wrong : {kNaN, double{HUGE_VAL}, 1e3}) {
    const auto result = [&](std::int64_t i, double x) { return i == 17 ? wrong : x; };
    const TensorReport report = answers.judge(TILEWISE_FP32, result, exact);
    EXPECT_FALSE(report.passed) << wrong;
    EXPECT_EQ(report.worst, 17);
  }
}

TEST(Accuracy, NaNWhereTheOracleHasItPasses) {
  TensorOwner owner;
  const std::int64_t shape[] = {2};
  tilewise_problem problems[2];
  for (tilewise_problem& problem : problems) {
    tilewise_problem_init(&problem);
    problem.out = owner.make(TILEWISE_FP64, 1, shape);
    write_element(problem.out, 0, kNaN);
    write_element(problem.out, 1, -HUGE_VAL);
  }
  const auto check = [&] {
    return check_accuracy(problem::Operation::kForward, problems[0], problems[1], {&problems[1]},
                          {})[0];
  };
  EXPECT_TRUE(check().passed);
  write_element(problems[0].out, 0, 1.0);
  EXPECT_FALSE(check().passed);
}

// Two problems of three numbers of lse: a result and the oracle's.
struct LsePair {
  LsePair() {
    const std::int64_t shape[] = {1, 1, 3};
    tilewise_problem_init(&result);
    oracle = result;
    result.lse = owner.make(TILEWISE_FP32, 3, shape);
    oracle.lse = owner.make(TILEWISE_FP64, 3, shape);
  }
  bool passes(std::initializer_list<double> lse, std::initializer_list<double> exact,
              const AccuracyOptions& options = {}) {
    for (std::int64_t i = 0; i < 3; ++i) {
      write_element(result.lse, i, lse.begin()[i]);
      write_element(oracle.lse, i, exact.begin()[i]);
    }
    return check_accuracy(problem::Operation::kForward, result, oracle, {}, options)[0].passed;
  }

  TensorOwner owner;
  tilewise_problem result;
  tilewise_problem oracle;
};

TEST(Accuracy, LseIsRelativeToOne) {
  LsePair pair;
  EXPECT_TRUE(pair.passes({0.5, 100, -HUGE_VAL}, {0.500009, 100.0009, -HUGE_VAL}));
  EXPECT_FALSE(pair.passes({0.5, 100, -HUGE_VAL}, {0.500011, 100, -HUGE_VAL}));
  EXPECT_FALSE(pair.passes({0.5, 100, -HUGE_VAL}, {0.5, 100.0011, -HUGE_VAL}));
  EXPECT_FALSE(pair.passes({0.5, 100, -1e30}, {0.5, 100, -HUGE_VAL}));
}

// Plain attention's error counts where it is larger than the number.
TEST(Accuracy, LseMayHaveTwicePlainsError) {
  LsePair pair;
  AccuracyOptions options;
  const auto passes = [&](double error) {
    return pair.passes({0, 0, 2 + 2 * error}, {0, 0, 2}, options);
  };
  options.other_draws = {{"lse", 1e-6}, {"out", 1.0}};
  EXPECT_TRUE(passes(0.9e-5));
  EXPECT_FALSE(passes(1.2e-5));
  options.other_draws.push_back({"lse", 2e-5});
  EXPECT_TRUE(passes(3.9e-5));
  EXPECT_FALSE(passes(4.2e-5));
}

// Where products are far larger than their sums, kernels and plain attention exceed 1e-5 alike.
TEST(Accuracy, AKernelMayHavePlainsErrorOfLse) {
  Case c;
  c.q_len = 1000;
  c.k_len = 20;
  c.head_dim = c.value_dim = 256;
  c.scale = 8;
  c.distribution = Distribution::kEqual;
  double largest = 0;
  for (c.seed = 1; c.seed <= 2; ++c.seed) {
    const Verdict verdict = Judge(c).judge("flash2");
    EXPECT_EQ(verdict.result, Verdict::kPassed) << verdict.text;
    for (const TensorReport& tensor : verdict.tensors) {
      if (std::strcmp(tensor.name, "lse") == 0) largest = std::max(largest, tensor.max_error);
    }
  }
  EXPECT_GT(largest, 1e-5);
}

// A backward case with every gradient.
Case backward_case(std::int32_t dtype) {
  Case c;
  c.operation = problem::Operation::kBackward;
  c.dtype = dtype;
  c.batch = c.heads = 2;
  c.q_len = c.k_len = 100;
  c.head_dim = c.value_dim = 64;
  c.sink = c.bias.present = c.alibi = true;
  c.gradients = kAllGradients | kDAlibiSlopes;
  return c;
}

TEST(Accuracy, LossesBelowTheNormalNumbersAreNothingBesideOne) {
  for (const std::int32_t dtype : {TILEWISE_FP64, TILEWISE_FP32}) {
    const Instance instance(backward_case(dtype));
    for (const bool flushes : {false, true}) {
      const Underflow underflow(instance.description(), instance.request(), flushes);
      for (const problem::NamedTensor& tensor : problem::kTensors) {
        if (tensor.role(problem::Operation::kBackward) != problem::Role::kOutput) continue;
        EXPECT_GT(underflow.error(tensor.member), 0) << tensor.name;
        EXPECT_LT(underflow.error(tensor.member), dtype == TILEWISE_FP64 ? 1e-295 : 1e-25)
            << tensor.name;
      }
    }
  }
}

// A kernel that keeps denormals may not lose gradients that consist of them.
TEST(Accuracy, DenormalGradientsExceedTheLosses) {
  Case c = backward_case(TILEWISE_FP32);
  c.distribution = Distribution::kSubnormal;
  Instance instance(c);
  Oracle oracle(instance.request());
  oracle.run(c.operation);
  const Underflow underflow(c, instance.request(), false);
  for (const auto member : {&tilewise_problem::dq, &tilewise_problem::dk}) {
    const double largest = largest_finite(numbers_of(oracle.results().*member));
    EXPECT_LT(largest, 0x1p-126);
    EXPECT_GT(largest, 100 * underflow.error(member));
  }
}

TEST(Accuracy, UlpIsTheDistanceToTheNextNumber) {
  EXPECT_EQ(ulp(TILEWISE_FP32, 1), 0x1p-23);
  EXPECT_EQ(ulp(TILEWISE_FP32, -3.9), 0x1p-22);
  EXPECT_EQ(ulp(TILEWISE_BF16, 1), 0x1p-7);
  EXPECT_EQ(ulp(TILEWISE_FP16, 1000), 0.5);
  EXPECT_EQ(ulp(TILEWISE_FP64, 1), 0x1p-52);
  EXPECT_EQ(ulp(TILEWISE_FP16, 0), 0x1p-24);
  EXPECT_EQ(ulp(TILEWISE_FP32, 1e-42), 0x1p-149);
}

}  // namespace
}  // namespace tilewise::verify
