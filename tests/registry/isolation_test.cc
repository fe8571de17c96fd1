// Isolation of non-finite inputs (T04).
#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "problem/tensors.h"
#include "registry/support.h"
#include "verify/cases.h"

namespace tilewise::tests {
namespace {

constexpr double kInfinite = HUGE_VAL;

struct Isolation {
  Case description;
  // True for a row of k and v that no query sees.
  bool (*unseen)(const RowIndex& at);
};

std::vector<Isolation> isolation_cases(Operation operation, std::int32_t dtype) {
  std::vector<Isolation> cases;
  Case c = make_case(operation, dtype, {2, 40, 90, 4, 2, 40});
  c.used = {55, 3};
  cases.push_back({c, [](const RowIndex& at) { return at.row >= (at.batch == 0 ? 55 : 3); }});
  c = make_case(operation, dtype, {2, 40, 90, 4, 2, 40});
  c.mask = {true, 1, {true, true, true, true}};
  cases.push_back({c, [](const RowIndex& at) { return at.row % 3 == 1; }});
  c = make_case(operation, dtype, {1, 40, 90, 4, 2, 16});
  c.causal = true;
  c.alignment = TILEWISE_TOP_LEFT;
  cases.push_back({c, [](const RowIndex& at) { return at.row >= 40; }});
  c = make_case(operation, dtype, {1, 33, 70, 2, 1, 16});
  c.slices = {{0, 33, 10, 20, 0, -1}, {5, 30, 40, 60, 0, -1}};
  cases.push_back({c, [](const RowIndex& at) {
                     return at.row < 10 || (at.row >= 20 && at.row < 40) || at.row >= 60;
                   }});
  c = make_case(operation, dtype, {2, 0, 0, 2, 1, 24});
  c.q_packed = c.k_packed = true;
  c.q_lengths = {20, 31};
  c.k_lengths = {45, 30};
  c.unowned = 4;
  cases.push_back({c, [](const RowIndex& at) { return at.row < 4 || at.row >= 4 + 45 + 30; }});
  return cases;
}

// If the case has a mask over keys, the mask is false for exactly the unseen ones.
void set_mask(const Isolation& isolation, const tilewise_problem& request) {
  if (request.mask.rank == 0) return;
  for (std::int64_t j = 0; j < request.mask.shape[0]; ++j) {
    const bool unseen = isolation.unseen({0, j, 0, 0});
    static_cast<std::uint8_t*>(request.mask.data)[j] = unseen ? 0 : 1;
  }
}

void poison_unseen(const Isolation& isolation, const tilewise_problem& request) {
  const double poisons[] = {std::nan(""), kInfinite, -kInfinite};
  for (const auto member : {&tilewise_problem::k, &tilewise_problem::v}) {
    const tilewise_tensor& tensor = request.*member;
    verify::for_each_element(tensor, [&](std::int64_t i, std::int64_t offset) {
      const RowIndex at = row_index(tensor, TILEWISE_BSHD, i);
      if (!isolation.unseen(at)) return;
      verify::write_element(tensor, offset, poisons[(at.row + at.column / 7) % 3]);
    });
  }
}

// True for kernels that recompute rows on a slow path after a non-finite value has affected them,
// and then not in the order of their own sums (docs/matrix-unit.md).
bool rounds_anew(const Kernel& kernel, Operation operation) {
  return std::string(kernel.name) == "cpu_amx" && operation == Operation::kBackward;
}

// True if x is the expected number or, for a kernel that rounds anew, equal up to the rounding of
// the inputs' type.
bool holds(const Kernel& kernel, Operation operation, double x, double expected) {
  if (x == expected) return true;
  return rounds_anew(kernel, operation) &&
         std::abs(x - expected) <= 1e-2 + 0.02 * std::abs(expected);
}

std::int64_t count_other(const Kernel& kernel, const tilewise_tensor& tensor,
                         const std::vector<double>& expected) {
  const std::vector<double> values = verify::numbers_of(tensor);
  std::int64_t other = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    other += holds(kernel, Operation::kForward, values[i], expected[i]) ? 0 : 1;
  return other;
}

TEST(NonFinite, UnseenKeysReachNothing) {
  TILEWISE_TRACE_SEED();
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      for (const Isolation& isolation : isolation_cases(operation, dtype)) {
        Instance clean(isolation.description);
        Instance poisoned(isolation.description);
        set_mask(isolation, clean.request());
        set_mask(isolation, poisoned.request());
        give_forward_results(clean);
        give_forward_results(poisoned);
        poison_unseen(isolation, poisoned.request());
        for (const Kernel* kernel : kernels_for(clean)) {
          const auto expected = run_for_bits(kernel->name, clean);
          const auto bits = run_for_bits(kernel->name, poisoned);
          if (!rounds_anew(*kernel, Operation::kForward)) {
            EXPECT_EQ(bits, expected) << kernel->name << ": " << describe(isolation.description);
          }
          for (const auto member : {&tilewise_problem::out, &tilewise_problem::lse}) {
            EXPECT_EQ(count_other(*kernel, poisoned.request().*member,
                                  verify::numbers_of(clean.request().*member)),
                      0)
                << kernel->name << ": " << describe(isolation.description);
          }
        }
      }
    }
  }
}

// If a key is NaN, exactly the rows that see it are NaN, in out and lse; every other row keeps its
// bits.
TEST(NonFinite, NaNKeyReachesExactlyTheRowsThatSeeIt) {
  TILEWISE_TRACE_SEED();
  constexpr std::int64_t kKey = 29;
  for (const std::int32_t dtype : kDtypes) {
    Case c = make_case(Operation::kForward, dtype, {2, 70, 70, 4, 2, 32});
    c.causal = true;
    Instance clean(c);
    Instance poisoned(c);
    const tilewise_tensor& k = poisoned.request().k;
    const std::int64_t offset = k.strides[0] + kKey * k.strides[1];  // batch 1, kv head 0
    verify::write_element(k, offset + 5, std::nan(""));
    for (const Kernel* kernel : kernels_for(clean)) {
      run_for_bits(kernel->name, clean);
      run_for_bits(kernel->name, poisoned);
      const auto sees = [&](const RowIndex& at) {
        return at.batch == 1 && at.head < 2 && at.row >= kKey;
      };
      const std::vector<double> expected = verify::numbers_of(clean.request().out);
      const std::vector<double> out = verify::numbers_of(poisoned.request().out);
      for (std::size_t i = 0; i < out.size(); ++i) {
        const RowIndex at =
            row_index(clean.request().out, TILEWISE_BSHD, static_cast<std::int64_t>(i));
        ASSERT_TRUE(sees(at) ? std::isnan(out[i])
                             : holds(*kernel, Operation::kForward, out[i], expected[i]))
            << kernel->name << " row " << at.row << ": " << describe(c);
      }
      const std::vector<double> expected_lse = verify::numbers_of(clean.request().lse);
      const std::vector<double> lse = verify::numbers_of(poisoned.request().lse);
      for (std::size_t i = 0; i < lse.size(); ++i) {
        const std::int64_t n = static_cast<std::int64_t>(i);
        const RowIndex at = {n / 280, n % 70, n / 70 % 4, 0};
        ASSERT_TRUE(sees(at) ? std::isnan(lse[i])
                             : holds(*kernel, Operation::kForward, lse[i], expected_lse[i]))
            << kernel->name << " row " << at.row << ": " << describe(c);
      }
    }
  }
}

// A NaN or infinite value affects out alone: the rows and the column where plain attention has it.
// All other numbers keep their accuracy, and lse keeps its bits.
TEST(NonFinite, ValueReachesOnlyItsColumnOfTheRowsThatSeeIt) {
  TILEWISE_TRACE_SEED();
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      for (const double poison : {std::nan(""), kInfinite}) {
        Case c = make_case(operation, dtype, {1, 70, 70, 2, 2, 32});
        c.causal = true;
        expect_all_pass(c, [&](const tilewise_problem& request) {
          const tilewise_tensor& v = request.v;
          verify::write_element(v, 40 * v.strides[1] + v.strides[2] + 3, poison);
        });
      }
    }
  }
}

// A NaN query row affects its own row alone; in the backward pass also the gradients of its keys.
TEST(NonFinite, NaNQueryStaysInItsRow) {
  TILEWISE_TRACE_SEED();
  constexpr std::int64_t kRow = 21;
  for (const Work& work : kOperationsOfTwoWidths) {
    const Operation operation = work.operation;
    Case c = make_case(operation, work.dtype, {1, 50, 66, 2, 2, 24});
    c.window_left = 4;
    c.window_right = 0;
    Instance clean(c);
    Instance poisoned(c);
    const tilewise_tensor& q = poisoned.request().q;
    verify::write_element(q, kRow * q.strides[1], std::nan(""));
    give_forward_results(clean);
    give_forward_results(poisoned);
    const bool forward = operation == Operation::kForward;
    const auto rows_of = forward ? &tilewise_problem::out : &tilewise_problem::dq;
    for (const Kernel* kernel : kernels_for(clean)) {
      run_for_bits(kernel->name, clean);
      run_for_bits(kernel->name, poisoned);
      const auto compare = [&](tilewise_tensor tilewise_problem::*member, std::int64_t first,
                               std::int64_t last) {
        const std::vector<double> expected = verify::numbers_of(clean.request().*member);
        const std::vector<double> result = verify::numbers_of(poisoned.request().*member);
        for (std::size_t i = 0; i < result.size(); ++i) {
          const RowIndex at =
              row_index(clean.request().*member, TILEWISE_BSHD, static_cast<std::int64_t>(i));
          const bool affected = at.head == 0 && at.row >= first && at.row <= last;
          ASSERT_TRUE(affected ? std::isnan(result[i])
                               : holds(*kernel, operation, result[i], expected[i]))
              << kernel->name << " row " << at.row << ": " << describe(c);
        }
      };
      compare(rows_of, kRow, kRow);
      const std::int64_t diagonal = kRow + 66 - 50;
      if (!forward) compare(&tilewise_problem::dk, diagonal - 4, diagonal);
    }
  }
}

// The NaN query does not affect a neighbouring row that has seen no key yet when the NaN arrives.
TEST(NonFinite, NaNQuerySparesRowsThatSeeLaterKeys) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : kDtypes) {
    for (const std::int64_t poisoned_row : {4, 20}) {
      Case c = make_case(Operation::kForward, dtype, {1, 40, 96, 1, 1, 32});
      const std::int64_t late = 24 - poisoned_row;  // its neighbour, 16 lanes further
      c.slices = {
          {0, late, 0, 66, 0, -1}, {late, late + 1, 64, 96, 0, -1}, {late + 1, 40, 0, 66, 0, -1}};
      Instance clean(c);
      Instance poisoned(c);
      const tilewise_tensor& q = poisoned.request().q;
      verify::write_element(q, poisoned_row * q.strides[1], std::nan(""));
      for (const Kernel* kernel : runnable_kernels(Operation::kForward, dtype)) {
        run_for_bits(kernel->name, clean);
        run_for_bits(kernel->name, poisoned);
        const std::vector<double> expected = verify::numbers_of(clean.request().lse);
        const std::vector<double> lse = verify::numbers_of(poisoned.request().lse);
        for (std::size_t row = 0; row < lse.size(); ++row) {
          const bool affected = static_cast<std::int64_t>(row) == poisoned_row;
          ASSERT_TRUE(affected ? std::isnan(lse[row]) : lse[row] == expected[row])
              << kernel->name << " row " << row << ": " << describe(c);
        }
      }
    }
  }
}

// A NaN whose bits are all ones, as in memory of 0xFF bytes, would become zero if it were rounded
// like a number.
TEST(NonFinite, NaNWhoseBitsAreAllOnesStaysNaN) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16}) {
    for (const auto member : {&tilewise_problem::lse, &tilewise_problem::dlse}) {
      Case c = make_case(Operation::kBackward, dtype, {1, 64, 96, 2, 2, 32});
      c.dlse = true;
      Instance instance(c);
      give_forward_results(instance);
      const tilewise_tensor& statistic = instance.request().*member;
      constexpr std::int64_t kRow = 37;
      std::memset(static_cast<float*>(statistic.data) + kRow * statistic.strides[2], 0xFF, 4);
      for (const Kernel* kernel : runnable_kernels(Operation::kBackward, dtype)) {
        run_for_bits(kernel->name, instance);
        const auto expect_nan = [&](const tilewise_tensor& tensor, auto is_spoilt) {
          const std::vector<double> values = verify::numbers_of(tensor);
          for (std::size_t i = 0; i < values.size(); ++i) {
            const RowIndex at = row_index(tensor, TILEWISE_BSHD, static_cast<std::int64_t>(i));
            ASSERT_EQ(std::isnan(values[i]), at.head == 0 && is_spoilt(at.row))
                << kernel->name << " row " << at.row << ": " << describe(c);
          }
        };
        const bool of_probs = member == &tilewise_problem::lse;
        expect_nan(instance.request().dq, [](std::int64_t row) { return row == kRow; });
        expect_nan(instance.request().dk, [](std::int64_t) { return true; });
        expect_nan(instance.request().dv, [&](std::int64_t) { return of_probs; });
      }
    }
  }
}

// A query with one infinity whose scores are all -inf sees nothing: with a sink its LSE is finite.
TEST(NonFinite, InfiniteQueryThatSeesNothingHasTheLseOfTheSink) {
  TILEWISE_TRACE_SEED();
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      for (const bool sink : {false, true}) {
        for (const std::int64_t keys : {96, 128}) {  // tiles that are seen in part, and whole
          Case c = make_case(operation, dtype, {1, keys == 96 ? 64 : 128, keys, 2, 2, 32});
          c.sink = sink;
          expect_all_pass(c, [&](const tilewise_problem& request) {
            verify::write_element(request.q, 37 * request.q.strides[1] + 3, kInfinite);
            for (std::int64_t j = 0; j < keys; ++j) {
              verify::write_element(request.k, j * request.k.strides[1] + 3,
                                    -1 - static_cast<double>(j % 7) / 8);
            }
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
