// Rows of queries at and after seqused_q: nothing that they hold matters, and hostile lengths are
// clamped (T04, T06).
#include <cmath>
#include <string>

#include "problem/tensors.h"
#include "registry/support.h"

namespace tilewise::tests {
namespace {

constexpr std::int64_t kQueries = 70;

// Sequences that use all of their queries, none, and some.
Case cut_case(Operation operation, std::int32_t dtype) {
  Case c = make_case(operation, dtype, {4, kQueries, 90, 4, 2, 40});
  c.used_q = {kQueries, 0, 65, 3};
  c.causal = c.dlse = true;
  return c;
}

// dBias and dSink are sums over rows. The sequence of 3 queries is decoded.
Case summed_case(Operation operation, std::int32_t dtype) {
  Case c = cut_case(operation, dtype);
  c.causal = false;
  c.sink = true;
  c.bias = {true, 2, {true, true, true, true}};
  return c;
}

Case packed_case(Operation operation, std::int32_t dtype) {
  Case c = make_case(operation, dtype, {3, 0, 0, 2, 1, 64});
  c.q_packed = c.k_packed = c.causal = true;
  c.q_lengths = {40, 33, 5};
  c.k_lengths = {40, 50, 9};
  c.used_q = {21, 0, 4};
  return c;
}

bool is_unused(const Case& c, const RowIndex& at) {
  if (!c.q_packed) return at.row >= c.used_q[static_cast<std::size_t>(at.batch)];
  std::int64_t start = 0;
  for (std::size_t b = 0; b < c.q_lengths.size(); ++b) {
    if (at.row < start + c.q_lengths[b]) return at.row >= start + c.used_q[b];
    start += c.q_lengths[b];
  }
  return true;
}

// The place of an element of q, out, lse and of their gradients.
RowIndex place_of(const Case& c, const tilewise_tensor& tensor, std::int64_t number) {
  const bool statistics = tensor.rank == (c.q_packed ? 2 : 3);
  if (!statistics) return row_index(tensor, TILEWISE_BSHD, number);
  const std::int64_t rows = tensor.shape[tensor.rank - 1];
  return {c.q_packed ? 0 : number / rows / c.heads, number % rows, number / rows % c.heads, 0};
}

// NaN and infinities in the unused rows of everything that is read.
void poison_unused(const Case& c, const tilewise_problem& request) {
  const double poisons[] = {std::nan(""), HUGE_VAL, -HUGE_VAL};
  for (const auto member : {&tilewise_problem::q, &tilewise_problem::out, &tilewise_problem::lse,
                            &tilewise_problem::dout, &tilewise_problem::dlse}) {
    const tilewise_tensor& tensor = request.*member;
    if (tensor.rank == 0) continue;
    verify::for_each_element(tensor, [&](std::int64_t i, std::int64_t offset) {
      const RowIndex at = place_of(c, tensor, i);
      if (is_unused(c, at))
        verify::write_element(tensor, offset, poisons[(at.row + at.column / 7) % 3]);
    });
  }
}

void expect_unused_rows(const Case& c, const tilewise_tensor& tensor, double expected,
                        const std::string& what) {
  if (tensor.rank == 0) return;
  const std::vector<double> values = verify::numbers_of(tensor);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const RowIndex at = place_of(c, tensor, static_cast<std::int64_t>(i));
    if (is_unused(c, at)) {
      ASSERT_EQ(values[i], expected) << what << " row " << at.row << ": " << describe(c);
    }
  }
}

// True for kernels that compute rows near a non-finite value anew, in another order.
bool rounds_anew(const std::string& kernel, const Case& c) {
  return kernel == "cpu_amx" && c.operation == Operation::kBackward;
}

void expect_same_numbers(const std::string& kernel, const Instance& clean,
                         const Instance& poisoned) {
  const Case& c = clean.description();
  for (const problem::NamedTensor& named : problem::kTensors) {
    if (named.role(c.operation) != problem::Role::kOutput) continue;
    const std::vector<double> expected = verify::numbers_of(clean.request().*named.member);
    const std::vector<double> found = verify::numbers_of(poisoned.request().*named.member);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const double bound = rounds_anew(kernel, c) ? 1e-2 + 0.02 * std::abs(expected[i]) : 0;
      const bool same = found[i] == expected[i] || std::abs(found[i] - expected[i]) <= bound;
      ASSERT_TRUE(same) << kernel << " " << named.name << "[" << i << "]: " << found[i] << ", not "
                        << expected[i] << ": " << describe(c);
    }
  }
}

TEST(NonFinite, UnusedQueriesReachNothing) {
  TILEWISE_TRACE_SEED();
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      for (const auto make : {cut_case, summed_case, packed_case}) {
        const Case c = make(operation, dtype);
        Instance clean(c);
        Instance poisoned(c);
        give_forward_results(clean);
        give_forward_results(poisoned);
        poison_unused(c, poisoned.request());
        for (const Kernel* kernel : kernels_for(clean)) {
          run_for_bits(kernel->name, clean);
          run_for_bits(kernel->name, poisoned);
          expect_same_numbers(kernel->name, clean, poisoned);
          const bool forward = operation == Operation::kForward;
          const tilewise_problem& request = poisoned.request();
          expect_unused_rows(c, forward ? request.out : request.dq, 0, kernel->name);
          if (forward) expect_unused_rows(c, request.lse, -HUGE_VAL, kernel->name);
        }
      }
    }
  }
}

TEST(Bounds, UsedLengthsAreClamped) {
  TILEWISE_TRACE_SEED();
  const std::vector<std::int64_t> hostile = {INT32_MAX, INT32_MIN, -1, kQueries + 1};
  for (const Work& work : kOperationsOfTwoWidths) {
    for (const bool wide : {false, true}) {
      Case c = cut_case(work.operation, work.dtype);
      c.wide_indices = wide;
      c.used_q = hostile;
      Instance given(c);
      c.used_q = {kQueries, 0, 0, kQueries};
      Instance clamped(c);
      give_forward_results(clamped);
      if (work.operation == Operation::kBackward) given.set_forward_results(clamped.request());
      for (const Kernel* kernel : kernels_for(clamped)) {
        EXPECT_EQ(run_for_bits(kernel->name, given), run_for_bits(kernel->name, clamped))
            << kernel->name << ": " << describe(c);
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
