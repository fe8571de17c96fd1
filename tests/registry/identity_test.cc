// Identities of the softmax, of its merge and of its gradient, which every kernel must satisfy
// without any reference.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "math/softmax_state.h"
#include "registry/support.h"

namespace tilewise::tests {
namespace {

constexpr std::int64_t kQueryRows = 45;
constexpr std::int64_t kKeyRows = 150;

Case sample_case(Operation operation, std::int32_t dtype) {
  Case c = make_case(operation, dtype, {2, kQueryRows, kKeyRows, 4, 2, 32});
  c.causal = true;
  return c;
}

// The probabilities of a row sum to 1: v = 1 gives out = 1.
TEST(Identity, ProbabilitiesSumToOne) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : kDtypes) {
    Instance instance(sample_case(Operation::kForward, dtype));
    set_elements(instance.request().v, [](std::int64_t) { return 1.0; });
    for (const Kernel* kernel : kernels_for(instance)) {
      run_for_bits(kernel->name, instance);
      // The two sums over 150 keys may round differently.
      const double limit = 2 * verify::ulp(dtype, 1) + (dtype == TILEWISE_FP64 ? 2e-15 : 1e-6);
      for (const double x : verify::numbers_of(instance.request().out)) {
        ASSERT_NEAR(x, 1, limit) << kernel->name;
      }
    }
  }
}

// out is a weighted mean, so it never exceeds the largest value of its column.
TEST(Identity, OutputsStayBetweenTheValues) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : kDtypes) {
    Case c = sample_case(Operation::kForward, dtype);
    c.distribution = verify::Distribution::kOutlierElements;
    Instance instance(c);
    double largest = 0;
    for (const double x : verify::numbers_of(instance.request().v))
      largest = std::max(largest, std::abs(x));
    for (const Kernel* kernel : kernels_for(instance)) {
      run_for_bits(kernel->name, instance);
      for (const double x : verify::numbers_of(instance.request().out)) {
        ASSERT_LE(std::abs(x), largest * (1 + 1e-6) + verify::ulp(dtype, largest)) << kernel->name;
      }
    }
  }
}

// A constant that is added to all scores of a row changes its lse by that constant, and nothing
// else.
TEST(Identity, ShiftedScoresShiftTheLseAlone) {
  TILEWISE_TRACE_SEED();
  constexpr double kShift = 7.5;
  Case c = sample_case(Operation::kForward, TILEWISE_FP64);
  c.bias = {true, 2, {true, true, true, false}};
  Instance plain(c);
  Instance shifted(c);
  set_elements(plain.request().bias, [](std::int64_t) { return 0.0; });
  set_elements(shifted.request().bias, [](std::int64_t) { return kShift; });
  for (const Kernel* kernel : runnable_kernels(Operation::kForward, TILEWISE_FP64)) {
    run_for_bits(kernel->name, plain);
    run_for_bits(kernel->name, shifted);
    const auto out = verify::numbers_of(plain.request().out);
    const auto shifted_out = verify::numbers_of(shifted.request().out);
    const auto lse = verify::numbers_of(plain.request().lse);
    const auto shifted_lse = verify::numbers_of(shifted.request().lse);
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(shifted_out[i], out[i], 1e-13);
    for (std::size_t i = 0; i < lse.size(); ++i) {
      ASSERT_NEAR(shifted_lse[i], lse[i] + kShift, 1e-13) << kernel->name;
    }
  }
}

// Without a mask, the order of the keys does not matter.
TEST(Identity, PermutedKeysGiveTheSameResult) {
  TILEWISE_TRACE_SEED();
  Case c = sample_case(Operation::kForward, TILEWISE_FP64);
  c.causal = false;
  Instance plain(c);
  Instance reversed(c);
  for (const auto member : {&tilewise_problem::k, &tilewise_problem::v}) {
    const tilewise_tensor& from = plain.request().*member;
    const tilewise_tensor& to = reversed.request().*member;
    verify::for_each_element(to, [&](std::int64_t number, std::int64_t offset) {
      const std::int64_t row = row_index(to, TILEWISE_BSHD, number).row;
      const std::int64_t mirrored = offset + (kKeyRows - 1 - 2 * row) * to.strides[1];
      verify::write_element(to, offset, verify::read_element(from, mirrored));
    });
  }
  for (const Kernel* kernel : runnable_kernels(Operation::kForward, TILEWISE_FP64)) {
    run_for_bits(kernel->name, plain);
    run_for_bits(kernel->name, reversed);
    const auto expected = verify::numbers_of(plain.request().out);
    const auto out = verify::numbers_of(reversed.request().out);
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 1e-13);
  }
}

// Returns the rows [first, first + count) of the sequence axis.
tilewise_tensor keys_from(const tilewise_tensor& tensor, std::int64_t first, std::int64_t count) {
  tilewise_tensor part = tensor;
  part.data = static_cast<std::byte*>(tensor.data) +
              first * tensor.strides[1] * problem::dtype_size(tensor.dtype);
  part.shape[1] = count;
  return part;
}

// Attention over two parts of the keys, merged by the rule of src/math, equals attention over all
// keys. Split caches and rings of machines rely on this.
TEST(Identity, PartsMergeToTheWhole) {
  TILEWISE_TRACE_SEED();
  Case c = sample_case(Operation::kForward, TILEWISE_FP64);
  c.causal = false;
  Instance instance(c);
  for (const Kernel* kernel : runnable_kernels(Operation::kForward, TILEWISE_FP64)) {
    run_for_bits(kernel->name, instance);
    const auto whole = verify::numbers_of(instance.request().out);
    const auto whole_lse = verify::numbers_of(instance.request().lse);
    std::vector<double> outs[2];
    std::vector<double> lses[2];
    const std::int64_t split = 37;
    for (int half = 0; half < 2; ++half) {
      tilewise_problem part = instance.request();
      const std::int64_t first = half == 0 ? 0 : split;
      const std::int64_t count = half == 0 ? split : kKeyRows - split;
      part.k = keys_from(part.k, first, count);
      part.v = keys_from(part.v, first, count);
      ASSERT_EQ(run_kernel(kernel->name, Operation::kForward, part), TILEWISE_OK);
      outs[half] = verify::numbers_of(part.out);
      lses[half] = verify::numbers_of(part.lse);
    }
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const RowIndex at =
          row_index(instance.request().out, TILEWISE_BSHD, static_cast<std::int64_t>(i));
      const std::size_t row =
          static_cast<std::size_t>((at.batch * c.heads + at.head) * kQueryRows + at.row);
      const auto state = [&](int half) { return math::SoftmaxState<double>{lses[half][row], 1}; };
      const math::Merged<double> merged = math::merge(state(0), state(1));
      const math::Finalised<double> closed = math::finalise(merged.state, -HUGE_VAL);
      const double out =
          math::combine(merged.factor_a, outs[0][i]) + math::combine(merged.factor_b, outs[1][i]);
      ASSERT_NEAR(out * closed.scale, whole[i], 1e-13) << kernel->name;
      ASSERT_NEAR(closed.lse, whole_lse[row], 1e-13) << kernel->name;
    }
  }
}

// The score gradients of a row sum to zero: the bias gradient over a row, and dq for equal keys.
TEST(Identity, ScoreGradientsSumToZero) {
  TILEWISE_TRACE_SEED();
  Case c = sample_case(Operation::kBackward, TILEWISE_FP64);
  c.bias = {true, 4, {true, true, true, false}};
  c.distribution = verify::Distribution::kEqual;
  Instance instance(c);
  give_forward_results(instance);
  for (const Kernel* kernel : runnable_kernels(Operation::kBackward, TILEWISE_FP64)) {
    run_for_bits(kernel->name, instance);
    for (const double x : verify::numbers_of(instance.request().dbias)) ASSERT_NEAR(x, 0, 1e-12);
    for (const double x : verify::numbers_of(instance.request().dq)) {
      ASSERT_NEAR(x, 0, 1e-12) << kernel->name;
    }
  }
}

// A dlse of g adds g * P to the score gradients: with dout = 0, dv is 0 and dbias over a row sums
// to g.
TEST(Identity, GradientOfTheLseIsWeightedByTheProbabilities) {
  TILEWISE_TRACE_SEED();
  Case c = sample_case(Operation::kBackward, TILEWISE_FP64);
  c.dlse = true;
  c.bias = {true, 4, {true, true, true, false}};
  Instance instance(c);
  set_elements(instance.request().dout, [](std::int64_t) { return 0.0; });
  give_forward_results(instance);
  const auto dlse = verify::numbers_of(instance.request().dlse);
  for (const Kernel* kernel : runnable_kernels(Operation::kBackward, TILEWISE_FP64)) {
    run_for_bits(kernel->name, instance);
    for (const double x : verify::numbers_of(instance.request().dv))
      ASSERT_EQ(x, 0) << kernel->name;
    const auto dbias = verify::numbers_of(instance.request().dbias);
    ASSERT_EQ(dbias.size(), dlse.size());
    for (std::size_t i = 0; i < dlse.size(); ++i) {
      ASSERT_NEAR(dbias[i], dlse[i], 1e-12) << kernel->name;
    }
  }
}

// out is linear in v, and dropout preserves its mean: over many seeds the mean of the kept
// probabilities is 1.
TEST(Identity, DropoutKeepsTheMean) {
  TILEWISE_TRACE_SEED();
  for (const Kernel* kernel : runnable_kernels(Operation::kForward)) {
    double sum = 0;
    std::int64_t count = 0;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      Case c = sample_case(Operation::kForward, TILEWISE_FP32);
      c.dropout_p = 0.3;
      c.dropout_seed = seed;
      Instance instance(c);
      set_elements(instance.request().v, [](std::int64_t) { return 1.0; });
      run_for_bits(kernel->name, instance);
      for (const double x : verify::numbers_of(instance.request().out)) sum += x;
      count += verify::element_count(instance.request().out);
    }
    EXPECT_NEAR(sum / static_cast<double>(count), 1, 0.01) << kernel->name;
  }
}

}  // namespace
}  // namespace tilewise::tests
