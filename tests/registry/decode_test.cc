// Few queries on long caches, where kernels split the keys, and split them differently for more
// than 16 queries. Tests every number of rows per kv head and unusual widths, splits whose keys no
// row sees, and that the bits of a row depend on nothing but the row.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "plan/pool.h"
#include "registry/support.h"

namespace tilewise::tests {
namespace {

constexpr std::int64_t kSeveralSplits = 1300;

TEST(Decode, EveryCountOfRowsAndWidthKeepsTheAccuracy) {
  TILEWISE_TRACE_SEED();
  struct Rows {
    std::int64_t q_len, group;
  };
  const Rows kRows[] = {{1, 1}, {1, 2}, {1, 3},  {1, 4}, {5, 1},  {3, 2}, {1, 7},
                        {8, 1}, {3, 3}, {13, 1}, {4, 4}, {16, 2}, {8, 5}};
  const std::int64_t kWidths[] = {1, 8, 16, 20, 40, 64, 100, 128, 130};
  std::size_t i = 0;
  for (const std::int32_t dtype : kDtypes) {
    for (const Rows rows : kRows) {
      Case c = make_case(Operation::kForward, dtype,
                         {1, rows.q_len, 600, 2 * rows.group, 2, kWidths[i % 9]});
      c.value_dim = kWidths[(i / 9 + 3 * i) % 9];
      c.causal = i % 2 == 1;
      c.layout = i % 3 == 0 ? TILEWISE_BHSD : TILEWISE_BSHD;
      expect_all_pass(c);
      ++i;
    }
  }
}

// The lengths of the cache are the edges of splits and blocks.
TEST(Decode, EveryLengthNearTheEndOfASplitKeepsTheAccuracy) {
  TILEWISE_TRACE_SEED();
  for (const std::int64_t k_len : {1, 31, 32, 33, 511, 512, 513, 1023, 1024, 1025, 1537, 4097}) {
    for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16}) {
      for (const std::int64_t q_len : {2, 17, 120}) {
        Case c = make_case(Operation::kForward, dtype, {1, q_len, k_len, 4, 2, 24});
        c.sink = k_len % 2 == 0;
        c.softcap = q_len == 17 ? 5 : 0;
        c.dropout_p = q_len == 120 ? 0.2 : 0;
        expect_all_pass(c);
      }
    }
  }
}

// The windows begin and end inside of splits, and leave most splits without a visible key.
TEST(Decode, WindowsAcrossSplitsKeepTheAccuracy) {
  TILEWISE_TRACE_SEED();
  for (const std::int64_t left : {0, 1, 40, 511, 512, 600, 1200}) {
    for (const std::int32_t alignment : {TILEWISE_BOTTOM_RIGHT, TILEWISE_TOP_LEFT}) {
      for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16}) {
        for (const std::int64_t q_len : {7, 100}) {
          Case c = make_case(Operation::kForward, dtype, {1, q_len, kSeveralSplits, 4, 2, 24});
          c.window_left = left;
          c.window_right = 2;
          c.alignment = alignment;
          c.alibi = left % 2 == 0;
          expect_all_pass(c);
        }
      }
    }
  }
}

// Keys 500 to 1100 are masked for the rows with even numbers: for them the second split is empty,
// and its values must not affect them. The other rows see all keys.
void expect_masked_split_reaches_nothing(std::int32_t dtype, std::int64_t q_len) {
  const auto masked = [](std::int64_t key) { return key >= 500 && key < 1100; };
  Case c = make_case(Operation::kForward, dtype, {1, q_len, kSeveralSplits, 6, 2, 40});
  c.mask = {true, 2, {true, true, true, true}};
  Instance clean(c);
  Instance poisoned(c);
  for (const Instance* instance : {&clean, &poisoned}) {
    const tilewise_tensor& mask = instance->request().mask;
    verify::for_each_element(mask, [&](std::int64_t i, std::int64_t offset) {
      const bool hidden = i / kSeveralSplits % 2 == 0 && masked(i % kSeveralSplits);
      static_cast<std::uint8_t*>(mask.data)[offset] = hidden ? 0 : 1;
    });
  }
  const double kPoisons[] = {std::nan(""), HUGE_VAL, -HUGE_VAL};
  for (const auto member : {&tilewise_problem::k, &tilewise_problem::v}) {
    const tilewise_tensor& tensor = poisoned.request().*member;
    verify::for_each_element(tensor, [&](std::int64_t i, std::int64_t offset) {
      const RowIndex at = row_index(tensor, TILEWISE_BSHD, i);
      if (masked(at.row) && at.row % 50 == 7 && at.column % 3 == 1)
        verify::write_element(tensor, offset, kPoisons[at.row / 50 % 3]);
    });
  }
  for (const Kernel* kernel : runnable_kernels(Operation::kForward, dtype)) {
    run_for_bits(kernel->name, clean);
    run_for_bits(kernel->name, poisoned);
    const std::vector<double> expected = verify::numbers_of(clean.request().out);
    const std::vector<double> out = verify::numbers_of(poisoned.request().out);
    int affected = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const RowIndex at =
          row_index(clean.request().out, TILEWISE_BSHD, static_cast<std::int64_t>(i));
      if (at.row % 2 == 0) {
        ASSERT_EQ(out[i], expected[i]) << kernel->name << " row " << at.row << describe(c);
      } else {
        affected += std::isnan(out[i]) ? 1 : 0;
      }
    }
    EXPECT_EQ(affected, q_len / 2 * 6 * 40) << kernel->name << ": " << describe(c);
  }
}

TEST(Decode, NaNInAMaskedSplitReachesNothing) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : kDtypes) {
    expect_masked_split_reaches_nothing(dtype, 4);
    expect_masked_split_reaches_nothing(dtype, 40);
  }
}

// A non-finite value affects its column of the rows that see it, in whatever split it is.
TEST(Decode, NonFiniteValueReachesOnlyItsColumn) {
  TILEWISE_TRACE_SEED();
  for (const double poison : {std::nan(""), HUGE_VAL}) {
    for (const std::int64_t key : {3, 700, 1299}) {
      for (const std::int64_t q_len : {5, 50}) {
        Case c =
            make_case(Operation::kForward, TILEWISE_FP32, {1, q_len, kSeveralSplits, 4, 2, 37});
        c.causal = true;
        expect_all_pass(c, [&](const tilewise_problem& request) {
          const tilewise_tensor& v = request.v;
          verify::write_element(v, key * v.strides[1] + v.strides[2] + 3, poison);
        });
      }
    }
  }
}

// A score of -inf is masked, whichever column of the key causes it. Widths that are no multiple of
// a register read some columns twice.
TEST(Decode, MinusInfinityInAKeyMasksIt) {
  TILEWISE_TRACE_SEED();
  for (const std::int64_t width : {5, 20, 39, 100}) {
    for (std::int64_t column = 0; column < width; column += 3) {
      Case c = make_case(Operation::kForward, TILEWISE_FP32, {1, 2, 70, 4, 2, width});
      expect_all_pass(c, [&](const tilewise_problem& request) {
        const std::vector<double> q = verify::numbers_of(request.q);
        set_elements(request.q, [&](std::int64_t i) {
          return std::abs(q[static_cast<std::size_t>(i)]) + 0.1;
        });
        const tilewise_tensor& k = request.k;
        verify::write_element(k, 33 * k.strides[1] + k.strides[2] + column, -HUGE_VAL);
      });
    }
  }
}

TEST(Decode, ThreadsNeverChangeABit) {
  TILEWISE_TRACE_SEED();
  plan::Pool two(2);
  plan::Pool three(3);
  plan::Pool eight(8);
  const tilewise_executor executors[] = {two.executor(), three.executor(), eight.executor()};
  ShuffledExecutor shuffled(5, run_seed());
  for (const std::int32_t dtype : kDtypes) {
    for (const std::int64_t q_len : {2, 50}) {
      Case c = make_case(Operation::kForward, dtype, {2, q_len, 5000, 6, 2, 24});
      c.used = {5000, 1400};
      c.causal = c.sink = true;
      c.layout = dtype == TILEWISE_FP32 ? TILEWISE_BHSD : TILEWISE_BSHD;
      Instance instance(c);
      for (const Kernel* kernel : runnable_kernels(Operation::kForward, dtype)) {
        tilewise_executor serial;
        tilewise_executor_init(&serial);
        const auto expected = run_for_bits(kernel->name, instance, {&serial});
        for (const tilewise_executor& executor : executors) {
          ASSERT_EQ(run_for_bits(kernel->name, instance, {&executor}), expected)
              << kernel->name << ", " << executor.max_concurrency << ": " << describe(c);
        }
        ASSERT_EQ(run_for_bits(kernel->name, instance, {shuffled.get()}), expected)
            << kernel->name << ", shuffled: " << describe(c);
      }
    }
  }
}

// Returns the largest number of items that a run hands out at once; they run one after the other.
std::int64_t most_items(const Kernel& kernel, Instance& instance, std::int32_t concurrency) {
  std::int64_t most = 0;
  tilewise_executor executor;
  tilewise_executor_init(&executor);
  executor.max_concurrency = concurrency;
  executor.self = &most;
  executor.parallel_for = [](void* self, std::int64_t n, void (*fn)(void*, std::int64_t),
                             void* context) {
    std::int64_t& seen = *static_cast<std::int64_t*>(self);
    seen = std::max(seen, n);
    for (std::int64_t item = 0; item < n; ++item) fn(context, item);
  };
  run_for_bits(kernel.name, instance, {&executor});
  return most;
}

// With one head, and queries for one block only, there would be work for one thread without splits.
TEST(Decode, ManyKeysAreWorkForEveryThread) {
  TILEWISE_TRACE_SEED();
  constexpr std::int32_t kThreads = 8;
  for (const std::int32_t dtype : kDtypes) {
    for (const std::int64_t q_len : {2, 30}) {
      Instance instance(make_case(Operation::kForward, dtype, {1, q_len, 20000, 1, 1, 8}));
      for (const Kernel* kernel : runnable_kernels(Operation::kForward, dtype)) {
        // Rungs do not split the keys.
        if (std::string_view(kernel->name).substr(0, 4) != "cpu_") continue;
        EXPECT_EQ(most_items(*kernel, instance, kThreads), kThreads)
            << kernel->name << ": " << describe(instance.description());
      }
    }
  }
}

// The heads of a cache may be separate or interleaved: this changes the order of reads, but not a
// bit.
TEST(Decode, StridesChangeNoBit) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : kDtypes) {
    Case c = make_case(Operation::kForward, dtype, {2, 3, kSeveralSplits, 8, 4, 40});
    c.window_left = 900;
    Case transposed = c;
    transposed.storage = verify::Storage::kTransposed;
    Instance instance(c);
    Instance other(transposed);
    for (const Kernel* kernel : kernels_for(other)) {
      const auto expected = run_for_bits(kernel->name, instance);
      EXPECT_EQ(run_for_bits(kernel->name, other), expected) << kernel->name << ": " << describe(c);
    }
  }
}

// Short and long sequences of queries in one packed batch each have the bits that they have alone.
TEST(Decode, LongerPackedSequencesChangeNoBit) {
  TILEWISE_TRACE_SEED();
  const std::vector<std::int64_t> q_lengths = {1, 40, 16, 0, 17, 3};
  Case c = make_case(Operation::kForward, TILEWISE_BF16, {6, 0, kSeveralSplits, 4, 2, 32});
  c.q_packed = c.causal = c.batch_invariant = true;
  c.q_lengths = q_lengths;
  c.used = {1300, 900, 1025, 700, 1300, 512};
  expect_all_pass(c);
  Instance together(c);
  for (const Kernel* kernel : kernels_for(together)) {
    run_for_bits(kernel->name, together);
    const auto all = tensor_bits(together.request().out);
    std::int64_t row = 0;
    for (std::size_t b = 0; b < q_lengths.size(); ++b) {
      Case one = c;
      one.batch = 1;
      one.q_lengths = {q_lengths[b]};
      one.used = {c.used[b]};
      Instance alone(one);
      const auto copy = [](const tilewise_tensor& from, const tilewise_tensor& to,
                           std::int64_t skip) {
        const std::vector<double> values = verify::numbers_of(from);
        set_elements(to,
                     [&](std::int64_t i) { return values[static_cast<std::size_t>(skip + i)]; });
      };
      const std::int64_t row_size = std::int64_t{4} * 32;
      const std::int64_t cache_size = kSeveralSplits * 2 * 32;
      copy(together.request().q, alone.request().q, row * row_size);
      copy(together.request().k, alone.request().k, static_cast<std::int64_t>(b) * cache_size);
      copy(together.request().v, alone.request().v, static_cast<std::int64_t>(b) * cache_size);
      run_for_bits(kernel->name, alone);
      const auto expected = tensor_bits(alone.request().out);
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(row * row_size);
      const std::vector<std::uint64_t> rows(begin,
                                            begin + static_cast<std::ptrdiff_t>(expected.size()));
      EXPECT_EQ(rows, expected) << kernel->name << " sequence " << b << ": " << describe(c);
      row += q_lengths[b];
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
