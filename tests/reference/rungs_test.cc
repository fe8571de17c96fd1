// Compares every rung with the oracle: tightly in fp64, by the accuracy rule in the other dtypes,
// for any number of threads.
#include <gtest/gtest.h>

#include <cmath>

#include "problem/validate.h"
#include "reference/kernels.h"
#include "support.h"
#include "verify/accuracy.h"
#include "verify/instance.h"
#include "verify/oracle.h"

namespace tilewise::reference_test {
namespace {

constexpr tilewise_tensor tilewise_problem::*kResults[2][6] = {
    {&tilewise_problem::out, &tilewise_problem::lse},
    {&tilewise_problem::dq, &tilewise_problem::dk, &tilewise_problem::dv, &tilewise_problem::dbias,
     &tilewise_problem::dsink, &tilewise_problem::dalibi_slopes}};

std::vector<std::vector<double>> results_of(Operation operation, const tilewise_problem& request) {
  std::vector<std::vector<double>> results;
  for (const auto member : kResults[static_cast<int>(operation)]) {
    if (member != nullptr) results.push_back(numbers(request.*member));
  }
  return results;
}

// Expects equality up to `bound` times the largest number, and NaN and infinity in the same
// positions.
void expect_close(const std::vector<std::vector<double>>& result,
                  const std::vector<std::vector<double>>& expected, double bound) {
  for (std::size_t t = 0; t < expected.size(); ++t) {
    ASSERT_EQ(result[t].size(), expected[t].size());
    double scale = 1;
    for (const double x : expected[t]) {
      if (std::isfinite(x)) scale = std::max(scale, std::abs(x));
    }
    for (std::size_t i = 0; i < expected[t].size(); ++i) {
      const double error = std::abs(result[t][i] - expected[t][i]);
      const bool same =
          std::isnan(expected[t][i]) ? std::isnan(result[t][i]) : result[t][i] == expected[t][i];
      EXPECT_TRUE(same || error <= bound * scale)
          << "tensor " << t << " element " << i << ": " << result[t][i] << ", expected "
          << expected[t][i];
    }
  }
}

TEST(Rungs, AgreeInFp64) {
  for (const Case& c : small_cases()) {
    SCOPED_TRACE(verify::describe(c));
    verify::Instance instance(c);
    verify::Oracle oracle(instance.request());
    for (const Operation operation : {Operation::kForward, Operation::kBackward}) {
      oracle.run(operation);
      if (operation == Operation::kBackward) instance.set_forward_results(oracle.results());
      for (const Rung& rung : rungs()) {
        for (const std::int64_t sram : {std::int64_t{1}, kTinySramBytes, std::int64_t{0}}) {
          SCOPED_TRACE(rung.name + std::string(", fast memory of ") + std::to_string(sram));
          instance.prepare(operation);
          run(rung.kernel(operation), operation, instance.request(), {1, sram, nullptr});
          EXPECT_EQ(instance.damage(operation), "");
          // dsink, dalibi_slopes and an fp32 bias are stored in fp32, where rounding may go either
          // way.
          const bool narrow =
              operation == Operation::kBackward && (c.sink || c.alibi || c.bias_fp32);
          expect_close(results_of(operation, instance.request()),
                       results_of(operation, oracle.results()), narrow ? 1e-7 : 1e-13);
        }
      }
    }
  }
}

Case medium_case(std::int32_t dtype) {
  Case c;
  c.operation = Operation::kBackward;
  c.dtype = dtype;
  c.batch = 2;
  c.q_len = 67;
  c.k_len = 83;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 24;
  c.value_dim = 20;
  c.dlse = true;
  return c;
}

// In the precision of the inputs, the other rungs may have the error that the accuracy rule allows
// on top of that of three_pass, a plain attention that rounds less than the rule's: 2 * its error
// (gradients 3 *) and 2 ulp.
void expect_accuracy_of_three_pass(const Case& c, std::int64_t sram_bytes) {
  SCOPED_TRACE(verify::describe(c));
  verify::Instance instance(c);
  verify::Oracle oracle(instance.request());
  oracle.run(Operation::kBackward);
  instance.set_forward_results(oracle.results());
  for (const Operation operation : {Operation::kBackward, Operation::kForward}) {
    const double factor = operation == Operation::kForward ? 2 : 3;
    std::vector<double> plain_errors;
    for (const Rung& rung : rungs()) {
      SCOPED_TRACE(rung.name);
      instance.prepare(operation);
      run(rung.kernel(operation), operation, instance.request(), {2, sram_bytes, nullptr});
      std::size_t t = 0;
      for (const auto member : kResults[static_cast<int>(operation)]) {
        if (member == nullptr || (instance.request().*member).rank == 0) continue;
        const tilewise_tensor& result = instance.request().*member;
        const double error = verify::error_norms(result, oracle.results().*member).max;
        if (&rung == &rungs()[0]) plain_errors.push_back(error);
        double largest = 0;
        for (const double x : numbers(oracle.results().*member)) {
          if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
        }
        EXPECT_LE(error, factor * plain_errors[t] + 2 * verify::ulp(result.dtype, largest))
            << "tensor " << t;
        EXPECT_LE(error, 0.02 * largest) << "tensor " << t;
        ++t;
      }
    }
  }
}

TEST(Rungs, KeepTheirAccuracyInTheInputsPrecision) {
  std::uint64_t seed = 100;
  for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16}) {
    Case c = medium_case(dtype);
    c.seed = ++seed;
    expect_accuracy_of_three_pass(c, 20000);
    c.output_dtype = TILEWISE_FP32;
    c.causal = true;
    expect_accuracy_of_three_pass(c, 3000);
    c = medium_case(dtype);
    c.seed = ++seed;
    c.distribution = verify::Distribution::kOutlierElements;
    c.softcap = 5;
    c.bias.present = true;
    c.bias.full = {false, true, true, true};
    c.sink = true;
    c.dropout_p = 0.1;
    expect_accuracy_of_three_pass(c, 20000);
  }
}

TEST(Rungs, ThreadsChangeNoBit) {
  for (const Case& c : small_cases()) {
    SCOPED_TRACE(verify::describe(c));
    verify::Instance instance(c);
    run(*rungs()[0].forward, Operation::kForward, instance.request());
    for (const Rung& rung : rungs()) {
      SCOPED_TRACE(rung.name);
      for (const Operation operation : {Operation::kForward, Operation::kBackward}) {
        run(rung.kernel(operation), operation, instance.request(), {1, kTinySramBytes, nullptr});
        const auto expected = results_of(operation, instance.request());
        for (const std::int64_t concurrency : {2, 7}) {
          instance.prepare(operation);
          run(rung.kernel(operation), operation, instance.request(),
              {concurrency, kTinySramBytes, nullptr});
          EXPECT_EQ(results_of(operation, instance.request()), expected)
              << concurrency << " threads";
        }
      }
    }
  }
}

// For three_pass, Sq * Sk * 8 bytes exceed int64; the others have no such product.
TEST(Rungs, SayWhenAWorkspaceExceedsInt64) {
  verify::Instance instance(small_cases()[0]);
  tilewise_problem request = instance.request();
  for (const auto member :
       {&tilewise_problem::q, &tilewise_problem::k, &tilewise_problem::v, &tilewise_problem::out}) {
    (request.*member).shape[1] = std::int64_t{1} << 31;
  }
  request.lse = {};
  problem::Problem problem;
  ASSERT_EQ(problem::make_problem(Operation::kForward, request, &problem), TILEWISE_OK)
      << problem::message();
  for (const Rung& rung : rungs()) {
    const std::int64_t bytes = rung.forward->workspace_bytes(problem, 1);
    if (&rung == &rungs()[0]) {
      EXPECT_EQ(bytes, -1);
    } else {
      EXPECT_GT(bytes, 0) << rung.name;
    }
  }
}

TEST(Rungs, RefuseMoreFastMemoryThanPlanned) {
  verify::Instance instance(small_cases()[0]);
  problem::Problem problem;
  ASSERT_EQ(problem::make_problem(Operation::kForward, instance.request(), &problem), TILEWISE_OK);
  for (const Rung& rung : rungs()) {
    problem::RunContext context = {};
    context.sram_bytes = reference::kMaxSramBytes + 1;
    EXPECT_EQ(rung.forward->run(problem, context), TILEWISE_INVALID_ARGUMENT);
    EXPECT_STREQ(problem::message(), "sram_bytes: is 1048577, must be at most 1048576");
  }
}

}  // namespace
}  // namespace tilewise::reference_test
