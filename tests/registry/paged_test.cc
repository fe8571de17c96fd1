// Paged caches: a kernel gives the bits that it gives for the same keys in rows, whatever the size
// of a page and wherever the pages lie, and never reads what the table cannot mean.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "math/integer.h"
#include "problem/problem.h"
#include "registry/support.h"

namespace tilewise::tests {
namespace {

constexpr std::int64_t kPageSizes[] = {1, 3, 16, 64, 256, 1000};

// A paged case of `keys` keys, of which sequences use those of `used`.
Case paged_case(std::int32_t dtype, const std::vector<std::int64_t>& sizes, std::int64_t page_size,
                const std::vector<std::int64_t>& used) {
  Case c = make_case(Operation::kForward, dtype, sizes);
  c.page_size = page_size;
  c.k_len = math::round_up(c.k_len, page_size);
  c.used = used;
  return c;
}

std::int64_t clamped_page(const tilewise_problem& request, std::int64_t b, std::int64_t p) {
  const tilewise_tensor& table = request.page_table;
  const std::int32_t* const entries = static_cast<const std::int32_t*>(table.data);
  const std::int64_t page = entries[b * table.strides[0] + p * table.strides[1]];
  return std::clamp<std::int64_t>(page, 0, request.k.shape[0] - 1);
}

// Copies q, the sink and every key in use, by way of the table, to an instance without pages. It
// knows nothing of problem::PageTable.
void copy_to_rows(const tilewise_problem& paged, const Case& c, const tilewise_problem& rows) {
  for (const auto member : {&tilewise_problem::q, &tilewise_problem::sink}) {
    verify::for_each_element(paged.*member, [&](std::int64_t, std::int64_t offset) {
      verify::write_element(rows.*member, offset, verify::read_element(paged.*member, offset));
    });
  }
  for (const auto member : {&tilewise_problem::k, &tilewise_problem::v}) {
    const tilewise_tensor& from = paged.*member;
    const tilewise_tensor& to = rows.*member;
    const int row_axis = c.layout == TILEWISE_BHSD ? 2 : 1;
    verify::for_each_element(to, [&](std::int64_t i, std::int64_t offset) {
      const RowIndex at = row_index(to, c.layout, i);
      const bool in_use = c.used.empty() || at.row < c.used[static_cast<std::size_t>(at.batch)];
      if (!in_use) return;
      const std::int64_t page = clamped_page(paged, at.batch, at.row / c.page_size);
      const std::int64_t source = page * from.strides[0] +
                                  at.row % c.page_size * from.strides[row_axis] +
                                  at.head * from.strides[3 - row_axis] + at.column;
      verify::write_element(to, offset, verify::read_element(from, source));
    });
  }
}

// Expects equal bits from every kernel. `edit` changes the paged request first.
void expect_bits_of_rows(const Case& c,
                         const std::function<void(const tilewise_problem&)>& edit = {}) {
  Case without = c;
  without.page_size = 0;
  Instance paged(c);
  Instance rows(without);
  if (edit) edit(paged.request());
  copy_to_rows(paged.request(), c, rows.request());
  for (const Kernel* kernel : kernels_for(paged)) {
    EXPECT_EQ(run_for_bits(kernel->name, paged), run_for_bits(kernel->name, rows))
        << kernel->name << ": " << describe(c);
  }
}

TEST(Paged, ResultsHaveTheBitsOfTheSameKeysInRows) {
  TILEWISE_TRACE_SEED();
  std::size_t i = 0;
  for (const std::int64_t page_size : kPageSizes) {
    for (const std::int32_t dtype : kDtypes) {
      for (const std::int64_t q_len : {1, 5, 70}) {
        const std::int64_t widths[] = {64, 40, 128, 7};
        Case c = paged_case(dtype, {3, q_len, 400, 4, 2, widths[i % 4]}, page_size, {400, 0, 289});
        c.causal = i % 2 == 0;
        if (i % 3 == 1) c.window_left = 200;
        c.layout = i % 5 < 2 ? TILEWISE_BHSD : TILEWISE_BSHD;
        if (i % 4 == 3) c.storage = verify::Storage::kTransposed;
        c.sink = i % 7 == 0;
        expect_bits_of_rows(c);
        ++i;
      }
    }
  }
}

// More keys than the splits of a decoded sequence and of a short one have.
TEST(Paged, SplitsOfTheKeysBeginAnywhereInAPage) {
  TILEWISE_TRACE_SEED();
  for (const std::int64_t page_size : {1, 48, 1024}) {
    for (const std::int64_t q_len : {1, 40}) {
      for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16}) {
        Case c = paged_case(dtype, {2, q_len, 1600, 2, 1, 64}, page_size, {1600, 1033});
        c.window_left = q_len == 1 ? 1200 : -1;
        expect_bits_of_rows(c);
      }
    }
  }
}

// NaN, infinity and denormals take paths of their own, which read the rows again.
TEST(Paged, UnusualValuesHaveTheBitsOfTheSameKeysInRows) {
  TILEWISE_TRACE_SEED();
  using verify::Distribution;
  for (const Distribution kind :
       {Distribution::kNanK, Distribution::kInfK, Distribution::kNanV, Distribution::kInfV,
        Distribution::kSubnormal, Distribution::kTinyQK, Distribution::kHugeV}) {
    for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16}) {
      for (const std::int64_t q_len : {3, 80}) {
        Case c = paged_case(dtype, {2, q_len, 150, 2, 1, 64}, 16, {150, 131});
        c.distribution = verify::Data(kind);
        c.causal = true;
        expect_bits_of_rows(c);
      }
    }
  }
}

std::int32_t* table_of(const tilewise_problem& request) {
  return static_cast<std::int32_t*>(request.page_table.data);
}

TEST(Paged, SequencesMaySharePages) {
  TILEWISE_TRACE_SEED();
  for (const std::int64_t q_len : {1, 33}) {
    const Case c = paged_case(TILEWISE_BF16, {3, q_len, 320, 4, 2, 64}, 16, {320, 310, 300});
    expect_bits_of_rows(c, [](const tilewise_problem& request) {
      std::int32_t* const table = table_of(request);
      for (std::int64_t p = 0; p < 12; ++p) table[20 + p] = table[40 + p] = table[p];  // a prefix
      table[50] = table[49];  // a page that is there twice
    });
  }
}

// Plans do not look into a table: what names no page is the first or the last one.
TEST(Paged, TablesAndLengthsAreClamped) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16}) {
    for (const std::int64_t q_len : {1, 50}) {
      Case c = paged_case(dtype, {3, q_len, 96, 4, 2, 64}, 16, {96, 96, 96});
      Case clamped = c;
      clamped.used = {96, 0, 96};
      Instance wild(c);
      Instance tame(c);
      std::int32_t* const tables[] = {table_of(wild.request()), table_of(tame.request())};
      const std::int32_t last = static_cast<std::int32_t>(wild.request().k.shape[0]) - 1;
      for (const Instance* instance : {&wild, &tame}) {  // clamped entries meet no poison
        for (const auto member : {&tilewise_problem::k, &tilewise_problem::v}) {
          const tilewise_tensor& tensor = instance->request().*member;
          set_elements(tensor, [&](std::int64_t i) {
            return 0.02 * static_cast<double>(i * 37 % 101 - 50);
          });
        }
      }
      const std::int32_t kWild[] = {-1, INT32_MIN, INT32_MAX, last + 1};
      for (std::int32_t p = 0; p < 4; ++p) {
        tables[0][3 * p] = kWild[p];
        tables[1][3 * p] = p < 2 ? 0 : last;
      }
      for (const Instance* instance : {&wild, &tame}) {
        std::int32_t* const used = static_cast<std::int32_t*>(instance->request().seqused_k.data);
        used[0] = instance == &wild ? INT32_MAX : 96;
        used[1] = instance == &wild ? -7 : 0;
      }
      for (const Kernel* kernel : kernels_for(wild)) {
        EXPECT_EQ(run_for_bits(kernel->name, wild), run_for_bits(kernel->name, tame))
            << kernel->name << ": " << describe(c);
      }
    }
  }
}

// Returns the b-th sequence of the request as a batch of its own.
tilewise_problem alone(const tilewise_problem& batch, std::int64_t b) {
  tilewise_problem request = batch;
  for (const auto member : {&tilewise_problem::q, &tilewise_problem::out, &tilewise_problem::lse,
                            &tilewise_problem::seqused_k, &tilewise_problem::page_table}) {
    tilewise_tensor& tensor = request.*member;
    tensor.shape[0] = 1;
    tensor.data =
        static_cast<char*>(tensor.data) + b * tensor.strides[0] * problem::dtype_size(tensor.dtype);
  }
  return request;
}

TEST(Paged, ABatchInvariantRowHasTheSameBitsAlone) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16}) {
    for (const std::int64_t q_len : {1, 33}) {
      Case c = paged_case(dtype, {4, q_len, 1600, 4, 2, 64}, 16, {1600, 3, 0, 1111});
      c.batch_invariant = c.causal = true;
      Instance instance(c);
      for (const Kernel* kernel : kernels_for(instance)) {
        run_for_bits(kernel->name, instance);
        for (std::int64_t b = 0; b < c.batch; ++b) {
          const tilewise_problem request = alone(instance.request(), b);
          const auto together = output_bits(c.operation, request);
          ASSERT_EQ(run_kernel(kernel->name, c.operation, request), TILEWISE_OK);
          EXPECT_EQ(output_bits(c.operation, request), together)
              << kernel->name << " sequence " << b << ": " << describe(c);
        }
      }
    }
  }
}

// Each half of the pages is a part of the keys.
TEST(Paged, CallsOnSomeOfThePagesAccumulate) {
  TILEWISE_TRACE_SEED();
  for (const std::int64_t q_len : {1, 5, 40}) {
    Case c = paged_case(TILEWISE_FP32, {2, q_len, 96, 4, 2, 24}, 16, {96, 96});
    c.causal = c.alibi = true;
    Instance instance(c);
    for (const Kernel* const kernel : kernels_for(instance)) {
      if (kernel->device != TILEWISE_CPU) continue;
      run_for_bits(kernel->name, instance);
      const std::vector<double> out = verify::numbers_of(instance.request().out);
      const std::vector<double> lse = verify::numbers_of(instance.request().lse);
      set_elements(instance.request().out, [](std::int64_t) { return std::nan(""); });
      set_elements(instance.request().lse, [](std::int64_t) { return -HUGE_VAL; });
      std::int32_t used[2] = {48, 48};
      for (const std::int64_t half : {1, 0}) {
        std::int64_t parts[2][4] = {{0, 0, 48 * half, 96 - q_len}, {1, 0, 48 * half, 96 - q_len}};
        const std::int64_t shape[] = {2, 4}, batch[] = {2};
        tilewise_problem call = instance.request();
        call.accumulate = 1;
        call.parts = tilewise_contiguous(parts, TILEWISE_INT64, 2, shape);
        call.seqused_k = tilewise_contiguous(used, TILEWISE_INT32, 1, batch);
        call.page_table.shape[1] = 3;
        call.page_table.data = static_cast<std::int32_t*>(call.page_table.data) +
                               3 * half * call.page_table.strides[1];
        ASSERT_EQ(run_call(kernel->name, c.operation, call), TILEWISE_OK) << problem::message();
      }
      const std::vector<double> merged = verify::numbers_of(instance.request().out);
      for (std::size_t i = 0; i < out.size(); ++i)
        ASSERT_NEAR(merged[i], out[i], 1e-6) << kernel->name << " element " << i;
      const std::vector<double> merged_lse = verify::numbers_of(instance.request().lse);
      for (std::size_t i = 0; i < lse.size(); ++i)
        ASSERT_NEAR(merged_lse[i], lse[i], 2e-6) << kernel->name << " row " << i;
    }
  }
}

// The automatic choice of a device supports pages too.
TEST(Paged, EveryDtypeHasAKernelOfTheCpuThatIsNoRung) {
  for (const std::int32_t dtype : kDtypes) {
    const Case c = paged_case(dtype, {1, 2, 32, 2, 1, 16}, 16, {32});
    const Instance instance(c);
    plan::Plan plan;
    ASSERT_EQ(plan::make_plan(c.operation, instance.request(), {}, &plan), TILEWISE_OK);
    EXPECT_FALSE(plan.kernel->is_rung) << plan.reason;
  }
}

}  // namespace
}  // namespace tilewise::tests
