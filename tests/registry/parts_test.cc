// Calls on parts of the queries and keys accumulate to the result of one call with all of them, for
// every kernel: at any cuts, whatever `parts` holds, with empty rows and parts, and with fp32 sums
// whose error does not grow with the number of parts.
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "problem/tensors.h"
#include "registry/support.h"
#include "verify/accuracy.h"
#include "verify/cases.h"
#include "verify/oracle.h"
#include "verify/part_calls.h"

namespace tilewise::tests {
namespace {

using verify::PartCalls;

constexpr double kEmptyLse = -std::numeric_limits<double>::infinity();

// True for a call that the fast kernels of a device leave to the reference: on parts, with dropout
// or a window as long as any sequence; or with gradients of slopes.
bool leaves_parts(const Kernel& kernel, const tilewise_problem& call) {
  const bool is_fast =
      kernel.device == TILEWISE_CUDA && std::string(kernel.name) != "cuda_reference";
  const bool wide = call.dropout_p > 0 || call.window_left == INT64_MAX;
  return is_fast &&
         ((wide && problem::present(call.parts)) || problem::present(call.dalibi_slopes));
}

Case accumulating(Operation operation, std::int32_t dtype, const std::vector<std::int64_t>& sizes) {
  Case c = make_case(operation, dtype, sizes);
  verify::widen_outputs(c);
  return c;
}

class Parts : public testing::TestWithParam<Work> {
 protected:
  Operation operation() const { return GetParam().operation; }
  std::int32_t dtype() const { return GetParam().dtype; }
};

TEST_P(Parts, AtRandomCutsGiveTheWhole) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed() + 7);
  for (int cases = 0; cases < 8;) {
    Case c = verify::random_case(operation(), dtype(), random);
    if (!c.slices.empty() || !c.is_cut()) continue;
    expect_all_pass(c);
    ++cases;
  }
}

// Every column of a window, a causal edge and dropout moves with the place of the keys.
TEST_P(Parts, OfOneKeyAndOneRowGiveTheWhole) {
  TILEWISE_TRACE_SEED();
  Case c = accumulating(operation(), dtype(), {2, 7, 9, 2, 1, 16});
  c.causal = c.sink = true;
  c.window_left = 5;
  c.dropout_p = 0.4;
  c.alibi = true;
  c.gradients |= verify::kDAlibiSlopes;
  c.q_cuts = {1, 2, 3, 4, 5, 6};
  c.k_cuts = {1, 2, 3, 4, 5, 6, 7, 8};
  expect_all_pass(c);
}

// Tiles of every kernel, cut by edges that lie anywhere in them.
TEST_P(Parts, OfTilesGiveTheWhole) {
  TILEWISE_TRACE_SEED();
  Case c = accumulating(operation(), dtype(), {2, 200, 220, 2, 1, 64});
  c.causal = true;
  c.q_cuts = {71};
  c.k_cuts = {40, 150};
  expect_all_pass(c);
  c.window_left = 90;
  expect_all_pass(c);
}

INSTANTIATE_TEST_SUITE_P(Registry, Parts, testing::ValuesIn(kAllWork), [](const auto& work) {
  return operation_and_dtype(work.param.operation, work.param.dtype);
});

// The rms error of a kernel's output or gradient for keys in `count` pieces of equal length, after
// the sums have been rounded to the dtype of the inputs, as a caller does in the end.
double error_in_pieces(const char* kernel, std::int64_t count, Instance& instance,
                       const tilewise_problem& oracle, tilewise_tensor tilewise_problem::*member) {
  const Case& c = instance.description();
  std::vector<std::int64_t> cuts;
  for (std::int64_t i = 1; i < count; ++i) cuts.push_back(c.k_len * i / count);
  const PartCalls parts(c.operation, instance.request(), {}, cuts, c.seed);
  instance.prepare(c.operation);
  parts.start();
  for (const tilewise_problem& call : parts.calls())
    EXPECT_EQ(run_call(kernel, c.operation, call), TILEWISE_OK) << problem::message();
  verify::TensorOwner owner;
  return verify::error_norms(owner.copy(c.dtype, instance.request().*member), oracle.*member).rms;
}

// The rms of what the rounding of LSE to fp32 may do to `out`: it shifts the weights of two parts.
double lse_rounding(const tilewise_problem& oracle) {
  double most = 0;
  for (const double lse : verify::numbers_of(oracle.lse)) most = std::max(most, std::fabs(lse));
  const auto out = verify::numbers_of(oracle.out);
  const double squares = std::inner_product(out.begin(), out.end(), out.begin(), 0.0);
  return 0x1p-24 * most * std::sqrt(squares / static_cast<double>(out.size()));
}

// Partial outputs and gradients are sums in fp32, so that eight parts are as accurate as one, but
// for the rounding of LSE between two calls.
TEST(PartErrors, DoNotGrowWithTheNumberOfParts) {
  TILEWISE_TRACE_SEED();
  for (const Work& work : kOperationsOfTwoWidths) {
    Instance instance(accumulating(work.operation, work.dtype, {1, 128, 1024, 2, 2, 64}));
    verify::Oracle oracle(instance.request());
    oracle.run(work.operation);
    give_forward_results(instance);
    const bool forward = work.operation == Operation::kForward;
    const auto member = forward ? &tilewise_problem::out : &tilewise_problem::dq;
    const double between = forward ? lse_rounding(oracle.results()) : 0;
    for (const Kernel* kernel : kernels_for(instance)) {
      // One call of it sums in fp64, which sums of calls in fp32 cannot equal.
      if (std::string(kernel->name) == "cuda_reference") continue;
      const double whole = error_in_pieces(kernel->name, 1, instance, oracle.results(), member);
      const double eight = error_in_pieces(kernel->name, 8, instance, oracle.results(), member);
      EXPECT_GT(whole, 0) << kernel->name;
      EXPECT_LE(eight, std::hypot(1.02 * whole, between))
          << kernel->name << " " << operation_and_dtype(work.operation, work.dtype);
    }
  }
}

// Equal probs are rounded in one direction where each is added to the sum of an earlier call.
TEST(PartErrors, OfEqualProbsKeepTheAccuracy) {
  Case c = make_case(Operation::kForward, TILEWISE_FP64, {2, 95, 129, 4, 1, 7});
  c.distribution = verify::Distribution::kAlternating;
  c.scale = 0;
  c.lse = true;
  c.k_cuts = {0, 54};
  c.seed = 1933436972;
  expect_all_pass(c);
}

// A row that sees no key of a call keeps the bits of its result, an empty row gets out = 0 whatever
// it held, and so do rows of no sequence.
TEST(PartStates, OfRowsThatSeeNoKeyAreKept) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : kDtypes) {
    Case c = accumulating(Operation::kForward, dtype, {2, 40, 50, 2, 1, 24});
    c.used_q = {40, 33};
    c.mask = {true, 4, {true, true, true, false}};
    const Instance instance(c);
    tilewise_problem call = instance.request();
    call.accumulate = 1;
    // The rows in threes: visible, hidden with a result, hidden and empty.
    const auto kind = [](std::int64_t row) { return row % 3; };
    const std::int64_t rows = c.q_len;
    verify::for_each_element(call.mask, [&](std::int64_t i, std::int64_t offset) {
      static_cast<std::uint8_t*>(call.mask.data)[offset] = kind(i % rows) == 0 ? 1 : 0;
    });
    for (const Kernel* kernel : kernels_for(Operation::kForward, dtype, call)) {
      set_elements(call.lse, [&](std::int64_t i) {
        return kind(i % rows) == 1 ? 0.1 * static_cast<double>(i % 17) - 0.7 : kEmptyLse;
      });
      set_elements(call.out, [&](std::int64_t i) {
        const RowIndex at = row_index(call.out, c.layout, i);
        return kind(at.row) == 1 ? 0.01 * static_cast<double>(i % 101) : std::nan("");
      });
      const auto lse_before = verify::numbers_of(call.lse);
      const auto out_before = verify::numbers_of(call.out);
      ASSERT_EQ(run_call(kernel->name, Operation::kForward, call), TILEWISE_OK)
          << problem::message();
      const auto out = verify::numbers_of(call.out);
      for (std::size_t i = 0; i < out.size(); ++i) {
        const RowIndex at = row_index(call.out, c.layout, static_cast<std::int64_t>(i));
        const bool is_used = at.row < c.used_q[static_cast<std::size_t>(at.batch)];
        if (kind(at.row) == 1) {
          ASSERT_EQ(out[i], out_before[i]) << kernel->name << " row " << at.row;
        } else if (kind(at.row) == 2 || !is_used) {
          ASSERT_EQ(out[i], 0) << kernel->name << " row " << at.row;
        } else {
          ASSERT_TRUE(std::isfinite(out[i])) << kernel->name << " row " << at.row;
        }
      }
      const auto lse = verify::numbers_of(call.lse);
      for (std::size_t i = 0; i < lse.size(); ++i) {
        if (kind(static_cast<std::int64_t>(i) % rows) == 0) continue;
        ASSERT_EQ(lse[i], lse_before[i]) << kernel->name;
      }
    }
  }
}

// NaN of one part reaches the rows that see it, and stays there through the calls after it, even
// where the weight of its part underflows.
TEST(PartStates, KeepNaNOfAnEarlierPart) {
  TILEWISE_TRACE_SEED();
  Case c = accumulating(Operation::kForward, TILEWISE_FP32, {1, 20, 64, 2, 2, 16});
  const Instance instance(c);
  tilewise_problem call = instance.request();
  call.accumulate = 1;
  for (const Kernel* kernel : kernels_for(Operation::kForward, TILEWISE_FP32, call)) {
    set_elements(call.lse, [&](std::int64_t i) { return i % 3 == 0 ? std::nan("") : -1000.0; });
    set_elements(call.out, [&](std::int64_t i) { return i % 16 == 5 ? std::nan("") : 1.0; });
    ASSERT_EQ(run_call(kernel->name, Operation::kForward, call), TILEWISE_OK);
    const auto lse = verify::numbers_of(call.lse);
    const auto out = verify::numbers_of(call.out);
    for (std::size_t i = 0; i < lse.size(); ++i)
      ASSERT_EQ(std::isnan(lse[i]), i % 3 == 0) << kernel->name;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const RowIndex at = row_index(call.out, c.layout, static_cast<std::int64_t>(i));
      const bool is_nan = at.column == 5 || (at.head * c.q_len + at.row) % 3 == 0;
      ASSERT_EQ(std::isnan(out[i]), is_nan) << kernel->name << " element " << i;
    }
  }
}

// Whatever `parts` holds, a run writes its outputs and nothing else.
TEST(PartContents, MayBeHostile) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed() + 3);
  for (int step = 0; step < 40; ++step) {
    const Operation operation = random.pick({Operation::kForward, Operation::kBackward});
    const std::int32_t dtype = random.pick({TILEWISE_FP32, TILEWISE_BF16});
    Case c = accumulating(operation, dtype, {3, random.between(1, 40), 50, 2, 1, 16});
    c.causal = random.chance(0.5);
    c.window_left = random.pick<std::int64_t>({-1, 0, 9, INT64_MAX});
    c.alibi = random.chance(0.5);
    c.gradients |= verify::kDAlibiSlopes;
    c.dropout_p = random.pick({0.0, 0.3});
    Instance instance(c);
    give_forward_results(instance);
    std::int64_t numbers[12];
    for (std::int64_t& number : numbers) {
      number = random.pick<std::int64_t>({INT64_MIN, INT64_MAX, -1, 0, 3, std::int64_t{1} << 59,
                                          -(std::int64_t{1} << 59),
                                          static_cast<std::int64_t>(random.bits())});
    }
    tilewise_problem call = instance.request();
    const std::int64_t shape[] = {3, 4};
    call.parts = tilewise_contiguous(numbers, TILEWISE_INT64, 2, shape);
    for (const Kernel* kernel : kernels_for(operation, dtype, call)) {
      if (leaves_parts(*kernel, call)) continue;
      instance.prepare(operation);
      ASSERT_EQ(run_call(kernel->name, operation, call), TILEWISE_OK) << problem::message();
      ASSERT_EQ(instance.damage(operation), "") << kernel->name;
    }
  }
}

// Slices need no `parts`: calls with disjoint lists accumulate.
TEST(PartSlices, OfDisjointListsAccumulate) {
  TILEWISE_TRACE_SEED();
  const std::vector<verify::Slice> slices = {{0, 70, 0, 20, 0, -1},
                                             {0, 30, 20, 50, 1, -1},
                                             {30, 70, 50, 90, 3, -1},
                                             {10, 50, 90, 120, 2, -1}};
  for (const Work& work : kOperationsOfTwoWidths) {
    Case c = accumulating(work.operation, work.dtype, {1, 70, 120, 4, 2, 32});
    c.slices = slices;
    c.dropout_p = 0.2;
    Instance instance(c);
    verify::Oracle oracle(instance.request());
    oracle.run(work.operation);
    give_forward_results(instance);
    tilewise_problem whole = instance.request();
    whole.slices = {};
    const PartCalls one_call(work.operation, whole, {}, {}, c.seed);
    for (const Kernel* kernel : kernels_for(instance)) {
      if (leaves_parts(*kernel, whole)) continue;
      instance.prepare(work.operation);
      one_call.start();
      for (std::int64_t s = 0; s < static_cast<std::int64_t>(slices.size()); ++s) {
        tilewise_problem call = instance.request();
        call.accumulate = 1;
        call.slices.data = static_cast<std::int64_t*>(call.slices.data) + s * 5;
        call.slices.shape[0] = 1;
        ASSERT_EQ(run_call(kernel->name, work.operation, call), TILEWISE_OK) << problem::message();
      }
      const double limit = work.dtype == TILEWISE_FP32 ? 2e-5 : 5e-2;
      for (const auto member : {&tilewise_problem::out, &tilewise_problem::dq,
                                &tilewise_problem::dk, &tilewise_problem::dv}) {
        const tilewise_tensor& tensor = instance.request().*member;
        if (!problem::present(tensor)) continue;
        EXPECT_LE(verify::error_norms(tensor, oracle.results().*member).max, limit) << kernel->name;
      }
    }
  }
}

// A kernel that computes a block again, because it was not finite, adds it once all the same. A NaN
// in a query makes dK of the keys that it sees NaN, and the others stay what they are.
TEST(PartGradients, NextToNaNAreAddedOnce) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16}) {
    Case c = accumulating(Operation::kBackward, dtype, {1, 70, 80, 2, 1, 32});
    c.causal = true;
    c.alignment = TILEWISE_TOP_LEFT;
    Instance instance(c);
    give_forward_results(instance);
    set_elements(
        instance.request().q, [&, values = verify::numbers_of(instance.request().q)](auto i) {
          const bool is_nan = row_index(instance.request().q, c.layout, i).row == 40 && i % 7 == 0;
          return is_nan ? std::nan("") : values[static_cast<std::size_t>(i)];
        });
    tilewise_problem call = instance.request();
    for (const Kernel* kernel : kernels_for(instance)) {
      call.accumulate = 0;
      ASSERT_EQ(run_call(kernel->name, c.operation, call), TILEWISE_OK) << problem::message();
      const auto dk = verify::numbers_of(call.dk);
      const auto dv = verify::numbers_of(call.dv);
      EXPECT_TRUE(std::isnan(dk.front()) && std::isfinite(dk.back())) << kernel->name;
      call.accumulate = 1;
      for (const auto member :
           {&tilewise_problem::dq, &tilewise_problem::dk, &tilewise_problem::dv})
        set_elements(call.*member, [](std::int64_t) { return 0.5; });
      ASSERT_EQ(run_call(kernel->name, c.operation, call), TILEWISE_OK) << problem::message();
      for (const auto& [before, after] : {std::pair{dk, verify::numbers_of(call.dk)},
                                          std::pair{dv, verify::numbers_of(call.dv)}}) {
        for (std::size_t i = 0; i < before.size(); ++i) {
          const double expected = static_cast<double>(static_cast<float>(0.5 + before[i]));
          ASSERT_TRUE(std::isnan(before[i]) ? std::isnan(after[i]) : after[i] == expected)
              << kernel->name << " element " << i << ": " << after[i] << ", not " << expected;
        }
      }
    }
  }
}

// A bias of 16 bits has a dBias of fp32 that calls add to.
TEST(PartGradients, OfANarrowBiasAddUp) {
  TILEWISE_TRACE_SEED();
  Case c = accumulating(Operation::kBackward, TILEWISE_BF16, {2, 40, 50, 2, 1, 24});
  c.bias = {true, 4, {false, true, true, true}};
  c.bias_fp32 = false;
  Instance instance(c);
  verify::Oracle oracle(instance.request());
  oracle.run(c.operation);
  give_forward_results(instance);
  verify::TensorOwner owner;
  tilewise_problem call = instance.request();
  call.accumulate = 1;
  call.dbias = owner.make(TILEWISE_FP32, call.bias.rank, call.bias.shape);
  for (const Kernel* kernel : kernels_for(c.operation, TILEWISE_BF16, call)) {
    const auto outputs = {&tilewise_problem::dq, &tilewise_problem::dk, &tilewise_problem::dv,
                          &tilewise_problem::dbias};
    for (const auto member : outputs) set_elements(call.*member, [](std::int64_t) { return 0.0; });
    ASSERT_EQ(run_call(kernel->name, c.operation, call), TILEWISE_OK) << problem::message();
    const auto once = verify::numbers_of(call.dbias);
    EXPECT_LE(verify::error_norms(call.dbias, oracle.results().dbias).max, 0.05) << kernel->name;
    ASSERT_EQ(run_call(kernel->name, c.operation, call), TILEWISE_OK) << problem::message();
    const auto twice = verify::numbers_of(call.dbias);
    for (std::size_t i = 0; i < once.size(); ++i)
      ASSERT_EQ(twice[i], static_cast<double>(static_cast<float>(2 * once[i]))) << kernel->name;
  }
}

}  // namespace
}  // namespace tilewise::tests
