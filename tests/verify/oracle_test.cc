// Two independent oracles agree: three_pass of the library in fp64, and plain attention in long
// double with the C library's exp.
#include "verify/oracle.h"

#include <gtest/gtest.h>

#include <cmath>

#include "plan/plan.h"
#include "problem/tensors.h"
#include "verify/accuracy.h"
#include "verify/cases.h"
#include "verify/instance.h"
#include "verify/plain.h"

namespace tilewise::verify {
namespace {

double largest(const tilewise_tensor& tensor) {
  double result = 1;
  for_each_element(tensor, [&](std::int64_t, std::int64_t offset) {
    const double x = std::abs(read_element(tensor, offset));
    if (std::isfinite(x)) result = std::max(result, x);
  });
  return result;
}

// For fp32 cases the oracle is three_pass in fp64; the second opinion gets its fp64 inputs.
void compare_oracles(const Case& description) {
  const Instance instance(description);
  Oracle oracle(instance.request());
  oracle.run(description.operation);
  TensorOwner owner;
  tilewise_problem second = oracle.results();
  for (const problem::NamedTensor& tensor : problem::kTensors) {
    const bool result =
        tensor.forward == problem::Role::kOutput || tensor.backward == problem::Role::kOutput;
    tilewise_tensor& numbers = second.*tensor.member;
    if (result && problem::present(numbers)) {
      numbers = owner.make(TILEWISE_FP64, numbers.rank, numbers.shape);
    }
  }
  run_extended(Operation::kForward, second);
  if (description.operation == Operation::kBackward) run_extended(Operation::kBackward, second);
  for (const problem::NamedTensor& tensor : problem::kTensors) {
    if (tensor.role(description.operation) != problem::Role::kOutput) continue;
    const tilewise_tensor& first = oracle.results().*tensor.member;
    if (!problem::present(first)) continue;
    const ErrorNorms norms = error_norms(first, second.*tensor.member);
    EXPECT_LE(norms.max, 1e-11 * largest(first)) << tensor.name << "\n  " << describe(description);
  }
}

TEST(Oracle, AgreesWithPlainAttentionInLongDouble) {
  for (const Case& description : check_cases(11)) {
    if (description.dtype == TILEWISE_FP32) compare_oracles(description);
  }
}

TEST(Oracle, AgreesOnRandomCases) {
  Random random(2024);
  for (int i = 0; i < 100; ++i) {
    const Operation operation = i % 2 == 0 ? Operation::kForward : Operation::kBackward;
    compare_oracles(random_case(operation, TILEWISE_FP32, random));
  }
}

TEST(Oracle, ExactRowsAreItsRows) {
  Case c;
  c.batch = 2;
  c.q_len = 20;
  c.k_len = 33;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = c.value_dim = 8;
  c.causal = c.sink = true;
  c.softcap = 4;
  const Instance instance(c);
  Oracle oracle(instance.request());
  oracle.run(Operation::kForward);
  const std::vector<RowNumber> numbers = {{0, 0, 0}, {0, 3, 19}, {1, 2, 7}};
  const std::vector<ExactRow> rows = exact_rows(instance.request(), numbers);
  ASSERT_EQ(rows.size(), numbers.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const tilewise_tensor& out = oracle.results().out;  // (B, Sq, H, Dv)
    const tilewise_tensor& lse = oracle.results().lse;  // (B, H, Sq)
    const auto [batch, head, row] = numbers[i];
    for (std::int64_t column = 0; column < 8; ++column) {
      const std::int64_t at =
          batch * out.strides[0] + row * out.strides[1] + head * out.strides[2] + column;
      EXPECT_NEAR(rows[i].out[static_cast<std::size_t>(column)], read_element(out, at), 1e-13);
    }
    const std::int64_t at = batch * lse.strides[0] + head * lse.strides[1] + row;
    EXPECT_NEAR(rows[i].lse, read_element(lse, at), 1e-13);
  }
}

TEST(Oracle, LinearMemoryGivesTheSame) {
  Case c;
  c.operation = Operation::kBackward;
  c.q_len = 70;
  c.k_len = 90;
  c.heads = 2;
  c.head_dim = c.value_dim = 16;
  c.causal = true;
  c.kv_heads = 1;
  const Instance instance(c);
  Oracle best(instance.request());
  Oracle linear(instance.request());
  best.run(c.operation);
  linear.run(c.operation, Oracle::kLinearMemory);
  for (const auto member : {&tilewise_problem::dq, &tilewise_problem::dk, &tilewise_problem::dv}) {
    EXPECT_LE(error_norms(linear.results().*member, best.results().*member).max, 1e-13);
  }
}

}  // namespace
}  // namespace tilewise::verify
