// tilewise.hpp: spans, exceptions, RAII, and no behaviour of its own.
#include <gtest/gtest.h>
#include <tilewise/tilewise.hpp>

#include <cmath>
#include <numeric>

namespace tilewise::tests {
namespace {

// One batch, one head, two queries and two keys of dimension 2; the scale is 1.
struct Tiny {
  std::vector<float> q = {1, 0, 0, 1};
  std::vector<float> k = {1, 0, 0, 2};
  std::vector<float> v = {1, 2, 3, 4};
  std::vector<float> out = std::vector<float>(4);
  std::vector<float> lse = std::vector<float>(2);
  Problem problem;

  Tiny() {
    problem.q = tensor(std::span(std::as_const(q)), {1, 2, 1, 2});
    problem.k = tensor(std::span(std::as_const(k)), {1, 2, 1, 2});
    problem.v = tensor(std::span(std::as_const(v)), {1, 2, 1, 2});
    problem.out = tensor(std::span(out), {1, 2, 1, 2});
    problem.lse = tensor(std::span(lse), {1, 1, 2});
    problem.softmax_scale = 1;
  }

  void expect_result() const {
    const double e1 = std::exp(1.0);
    const double e2 = std::exp(2.0);
    EXPECT_NEAR(out[0], (e1 * 1 + 3) / (e1 + 1), 1e-6);
    EXPECT_NEAR(out[1], (e1 * 2 + 4) / (e1 + 1), 1e-6);
    EXPECT_NEAR(out[2], (1 + e2 * 3) / (1 + e2), 1e-6);
    EXPECT_NEAR(lse[0], std::log(e1 + 1), 1e-6);
    EXPECT_NEAR(lse[1], std::log(1 + e2), 1e-6);
  }
};

TEST(Hpp, ForwardComputesAttention) {
  Tiny tiny;
  forward(tiny.problem);
  tiny.expect_result();
}

TEST(Hpp, EveryKernelRunsByAPlanOnAPool) {
  for (const std::string& kernel : kernel_names(Operation::kForward)) {
    Tiny tiny;
    if (!why_not(Operation::kForward, kernel, tiny.problem).empty()) continue;
    PlanOptions options;
    options.kernel = kernel;
    options.max_concurrency = 2;
    const Plan plan(Operation::kForward, tiny.problem, options);
    EXPECT_EQ(plan.kernel(), kernel);
    EXPECT_NE(plan.reason().find(kernel), std::string::npos);
    const Workspace workspace = plan.make_workspace();
    const Pool pool(2);
    plan.run(tiny.problem, workspace, pool.executor());
    tiny.expect_result();
  }
}

TEST(Hpp, GradientsSumToZero) {
  Tiny tiny;
  forward(tiny.problem);
  std::vector<float> dout = {1, 1, 0.5f, 2};
  std::vector<float> dk(4);
  tiny.problem.dout = tensor(std::span(dout), {1, 2, 1, 2});
  tiny.problem.dk = tensor(std::span(dk), {1, 2, 1, 2});
  backward(tiny.problem);
  // With q the unit matrix, dK_j = sum_i dS_ij q_i consists of columns of dS, whose rows sum to
  // zero.
  EXPECT_NEAR(dk[0] + dk[2], 0, 1e-5);
  EXPECT_NEAR(dk[1] + dk[3], 0, 1e-5);
  EXPECT_GT(std::abs(dk[0]), 1e-3);
}

TEST(Hpp, ErrorsAreExceptions) {
  Tiny tiny;
  tiny.problem.layout = 5;
  try {
    forward(tiny.problem);
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), TILEWISE_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(error.what()).rfind("layout: is 5", 0), 0u) << error.what();
  }
  EXPECT_NE(why_not(Operation::kForward, "no_such_kernel", tiny.problem), "");
}

TEST(Hpp, SpansSmallerThanTheirShapeAreRefused) {
  std::vector<float> numbers(10);
  EXPECT_NO_THROW(tensor(std::span(numbers), {2, 5}));
  EXPECT_THROW(tensor(std::span(numbers), {2, 6}), Error);
  EXPECT_THROW(tensor(std::span(numbers), {-1, 5}), Error);
  EXPECT_THROW(tensor(std::span(numbers), {INT64_MAX, INT64_MAX}), Error);
  EXPECT_NO_THROW(tensor(std::span<float>(), {3, 0, INT64_MAX, INT64_MAX}));
  EXPECT_THROW(tensor(std::span<float>(), {0, -1}), Error);
  EXPECT_THROW(tensor(numbers.data(), TILEWISE_FP32, {1, 1, 1, 1, 1}), Error);
  EXPECT_THROW(tensor(numbers.data(), TILEWISE_FP32, {2, 5}, {1}), Error);
  const Tensor view = tensor(numbers.data(), TILEWISE_FP32, {2, 3}, {5, 1});
  EXPECT_EQ(view.strides[0], 5);
}

TEST(Hpp, VersionIsThatOfTheLibrary) { EXPECT_EQ(version(), tilewise_version()); }

TEST(Hpp, InfoIsWholeOrCut) {
  const std::string whole = info();
  EXPECT_EQ(whole.rfind("Tilewise " + version() + "\n", 0), 0u) << whole;
  for (const std::string& kernel : kernel_names(Operation::kBackward))
    EXPECT_NE(whole.find(kernel), std::string::npos) << whole;
  char text[12] = "...........";
  EXPECT_EQ(tilewise_info(text, 9), whole.size());
  EXPECT_EQ(std::string(text), "Tilewise");
  EXPECT_EQ(text[9], '.');
}

}  // namespace
}  // namespace tilewise::tests
