// Values near the largest number of their dtype (T05). The mean of such values is finite, but the
// sum of P V before it is normalised may not be: O is right however large V is.
#include <cmath>
#include <limits>
#include <string>

#include "registry/support.h"

namespace tilewise::tests {
namespace {

double large_number(std::int32_t dtype) {
  if (dtype == TILEWISE_FP64) return 1.5e308;
  return dtype == TILEWISE_FP16 ? 6e4 : 3e38;
}

// Which numbers of V are large; the others are those of the case.
enum class Large { kAll, kBothSigns, kOneHead, kOneColumn, kOneKey, kRisingKeys };
constexpr Large kLarge[] = {Large::kAll,       Large::kBothSigns, Large::kOneHead,
                            Large::kOneColumn, Large::kOneKey,    Large::kRisingKeys};

const char* name_of(Large large) {
  constexpr const char* kNames[] = {"all numbers", "both signs", "one head",
                                    "one column",  "one key",    "rising keys"};
  return kNames[static_cast<int>(large)];
}

// The key after two thirds of them: a tile of the middle.
std::int64_t large_key(const tilewise_tensor& v) { return v.shape[v.rank == 3 ? 0 : 1] * 2 / 3; }

// share: of large_number()
void make_large(Large large, const tilewise_tensor& v, double share = 1) {
  const double most = share * large_number(v.dtype);
  const std::int64_t keys = v.shape[v.rank == 3 ? 0 : 1];
  Random random(run_seed() + 7);
  verify::for_each_element(v, [&](std::int64_t i, std::int64_t offset) {
    const RowIndex at = row_index(v, TILEWISE_BSHD, i);
    const double number = most * (0.9 + 0.1 * random.uniform());
    const double sign = random.chance(0.5) ? -1 : 1;
    const bool chosen = large == Large::kOneHead     ? at.head == 0
                        : large == Large::kOneColumn ? at.column == 3
                        : large == Large::kOneKey    ? at.row == large_key(v)
                                                     : true;
    if (!chosen) return;
    const double rising = std::exp2(static_cast<double>(at.row - keys));
    verify::write_element(v, offset,
                          large == Large::kBothSigns    ? sign * number
                          : large == Large::kRisingKeys ? rising * number
                                                        : number);
  });
}

// Equal scores have the largest sums.
void clear_queries(const tilewise_problem& request) {
  set_elements(request.q, [](std::int64_t) { return 0.0; });
}

// cuda_reference divides fp64 sums at their end, and has no unit (docs/semantics.md).
void expect_pass(const Case& c, const verify::Judge::Edit& edit) {
  if (c.dtype != TILEWISE_FP64) return expect_all_pass(c, edit);
  verify::Judge judge(c, edit);
  for (const Kernel* const kernel : runnable_kernels(c)) {
    if (kernel->device != TILEWISE_CPU) continue;
    const verify::Verdict verdict = judge.judge(kernel->name);
    EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << verdict.text;
  }
}

void expect_large_values_pass(const Case& c, Large large, bool equal_scores) {
  SCOPED_TRACE(name_of(large));
  expect_pass(c, [&](const tilewise_problem& request) {
    make_large(large, request.v, c.dropout_p > 0 ? 0.3 : 1);  // O is no mean with dropout
    if (equal_scores) clear_queries(request);
  });
}

// Options of blocks of queries, with fewer outputs than a mean error is judged for: these values
// have a mean.
std::vector<Case> block_cases(std::int32_t dtype) {
  const auto sized = [&](const std::vector<std::int64_t>& sizes) {
    return make_case(Operation::kForward, dtype, sizes);
  };
  std::vector<Case> cases;
  Case c = sized({1, 130, 300, 2, 2, 24});
  cases.push_back(c);
  c.causal = true;
  cases.push_back(c);
  c = sized({1, 90, 90, 4, 2, 24});
  c.window_left = 50;
  c.window_right = 3;
  c.sink = true;
  cases.push_back(c);
  c = sized({1, 96, 280, 2, 2, 16});
  c.slices = {{0, 50, 0, 200, 1, -1}, {40, 96, 100, 280, 3, -1}};
  cases.push_back(c);
  c = sized({1, 70, 260, 2, 1, 33});
  c.mask = {true, 4, {true, true, true, true}};
  c.bias = {true, 2, {true, true, true, true}};
  cases.push_back(c);
  c = sized({3, 260, 370, 2, 1, 16});
  c.q_packed = c.k_packed = true;
  c.q_lengths = {150, 40, 70};
  c.k_lengths = {200, 40, 130};
  c.causal = true;
  cases.push_back(c);
  c = sized({2, 64, 208, 2, 1, 24});
  c.page_size = 16;
  c.used = {208, 77};
  c.alibi = true;
  cases.push_back(c);
  c = sized({1, 70, 130, 2, 2, 24});
  c.dropout_p = 0.5;
  cases.push_back(c);
  return cases;
}

TEST(LargeValues, BlocksOfQueriesKeepTheAccuracy) {
  TILEWISE_TRACE_SEED();
  std::size_t step = static_cast<std::size_t>(run_seed());
  for (const std::int32_t dtype : kDtypes) {
    for (const Case& c : block_cases(dtype)) {
      expect_large_values_pass(c, kLarge[step % 6], false);
      expect_large_values_pass(c, kLarge[++step % 6], true);
    }
  }
}

// Every place of the large numbers, for sums over several splits of the keys: one query, several,
// and too many to be decoded.
TEST(LargeValues, SplitsOfTheKeysKeepTheAccuracy) {
  TILEWISE_TRACE_SEED();
  std::size_t step = static_cast<std::size_t>(run_seed());
  for (const std::int32_t dtype : kDtypes) {
    for (const std::int64_t q_len : {1, 5, 16, 60}) {
      for (int i = 0; i < 3; ++i) {
        Case c = make_case(Operation::kForward, dtype, {1, q_len, 1300, 4, 2, 12});
        c.causal = step % 3 == 1;
        c.page_size = step % 4 == 2 ? 100 : 0;
        c.sink = step % 5 == 3;
        expect_large_values_pass(c, kLarge[step % 6], step % 5 < 3);
        ++step;
      }
    }
  }
}

TEST(LargeValues, DecodingOfEveryLengthKeepsTheAccuracy) {
  TILEWISE_TRACE_SEED();
  std::size_t step = 0;
  for (const std::int32_t dtype : kDtypes) {
    for (const std::int64_t k_len : {1, 2, 33, 512, 600, 4500}) {
      Case c = make_case(Operation::kForward, dtype, {2, 1 + k_len % 3, k_len, 4, 2, 64});
      c.window_left = step % 4 == 3 ? k_len / 2 : -1;
      c.dropout_p = step % 5 == 4 ? 0.5 : 0;
      if (k_len > 3) c.used = {k_len, k_len / 2};
      expect_large_values_pass(c, kLarge[step % 6], step % 2 == 0);
      ++step;
    }
  }
}

// A phi that serves the scores, and some that do not.
TEST(LargeValues, AnyPhiKeepsTheAccuracy) {
  TILEWISE_TRACE_SEED();
  std::size_t step = 0;
  for (const std::int32_t dtype : kDtypes) {
    for (const double phi : {0.0, 3.0, -40.0, 500.0}) {
      Case c = make_case(Operation::kForward, dtype, {1, 3, 1200, 4, 2, 40});
      c.phi = {phi};
      expect_large_values_pass(c, kLarge[step % 6], step % 2 == 0);
      ++step;
    }
  }
}

TEST(LargeValues, CallsThatAccumulateKeepTheAccuracy) {
  TILEWISE_TRACE_SEED();
  std::size_t step = 0;
  for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16}) {
    for (const std::int64_t q_len : {4, 60}) {
      Case c = make_case(Operation::kForward, dtype, {1, q_len, 900, 2, 1, 24});
      c.output_dtype = TILEWISE_FP32;
      c.k_cuts = {100, 640};
      expect_large_values_pass(c, kLarge[step % 6], step % 2 == 0);
      ++step;
    }
  }
}

// Sums that overflow in some columns, beside NaN and infinity in others and in masked keys.
TEST(LargeValues, NonFiniteValuesBesideThemStayInTheirColumns) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : kDtypes) {
    for (const std::int64_t q_len : {2, 120}) {
      Case c = make_case(Operation::kForward, dtype, {1, q_len, 1100, 2, 1, 24});
      c.causal = true;
      expect_pass(c, [&](const tilewise_problem& request) {
        make_large(Large::kBothSigns, request.v);
        verify::for_each_element(request.v, [&](std::int64_t i, std::int64_t offset) {
          const RowIndex at = row_index(request.v, TILEWISE_BSHD, i);
          if (at.row == 1099) verify::write_element(request.v, offset, std::nan(""));
          if (at.row == 300 && at.column == 5) verify::write_element(request.v, offset, -HUGE_VAL);
        });
      });
    }
  }
}

// The unit that large values need is a power of two, which changes no bit of other columns.
TEST(LargeValues, OtherColumnsKeepTheirBits) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : kDtypes) {
    for (const std::int64_t q_len : {3, 100}) {
      Case c = make_case(Operation::kForward, dtype, {1, q_len, 1500, 4, 2, 24});
      c.causal = true;
      Instance normal(c);
      Instance large(c);
      make_large(Large::kOneColumn, large.request().v);
      const std::vector<double> lse = verify::numbers_of(normal.request().lse);
      for (const Kernel* const kernel : runnable_kernels(c)) {
        if (kernel->device != TILEWISE_CPU) continue;
        const std::vector<std::uint64_t> expected = run_for_bits(kernel->name, normal);
        const std::vector<std::uint64_t> bits = run_for_bits(kernel->name, large);
        std::int64_t changed = 0;
        for (std::size_t i = 0; i < bits.size(); ++i) {
          const bool of_column = i < bits.size() - lse.size() && i % 24 == 3;
          changed += !of_column && bits[i] != expected[i] ? 1 : 0;
        }
        EXPECT_EQ(changed, 0) << kernel->name << ": " << verify::describe(c);
      }
    }
  }
}

// The CPU kernels whose gradients have units for the inputs.
bool has_gradient_units(const Kernel& kernel, std::int32_t dtype) {
  const std::string name = kernel.name;
  if (name.rfind("cpu_", 0) != 0 || name == "cpu_amx") return false;
  return name != "cpu_avx512_bf16" || dtype != TILEWISE_BF16;
}

// dQ, dK and dSink are proportional to V. Here dP and delta overflow, and the gradients do not.
// They are compared with those of values that are smaller by a power of two; there nothing
// overflows.
TEST(LargeValues, GradientsAreProportionalToThem) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : {TILEWISE_FP64, TILEWISE_FP32, TILEWISE_BF16}) {
    Case c = make_case(Operation::kBackward, dtype, {1, 70, 90, 2, 1, 24});
    c.sink = dtype != TILEWISE_FP64;  // dSink is fp32
    Instance large(c);
    Instance small(c);
    make_large(Large::kBothSigns, large.request().v);
    const std::vector<double> values = verify::numbers_of(large.request().v);
    set_elements(small.request().v,
                 [&](std::int64_t i) { return values[static_cast<std::size_t>(i)] * 0x1p-30; });
    give_forward_results(large);
    give_forward_results(small);
    for (const Kernel* const kernel : runnable_kernels(c)) {
      if (!has_gradient_units(*kernel, dtype)) continue;
      run_for_bits(kernel->name, large);
      run_for_bits(kernel->name, small);
      for (const auto member :
           {&tilewise_problem::dq, &tilewise_problem::dk, &tilewise_problem::dsink}) {
        const std::vector<double> expected = verify::numbers_of(small.request().*member);
        const std::vector<double> gradients = verify::numbers_of(large.request().*member);
        double most = 0;
        for (const double x : expected) most = std::fmax(most, std::abs(x));
        const double tolerance = most * (dtype == TILEWISE_BF16 ? 0x1p-7 : 1e-5);
        for (std::size_t i = 0; i < expected.size(); ++i)
          ASSERT_NEAR(gradients[i] * 0x1p-30, expected[i], tolerance)
              << kernel->name << ", " << i << ": " << verify::describe(c);
      }
    }
  }
}

std::int64_t bytes_read(const Kernel& kernel, Instance& instance) {
  problem::Traffic traffic;
  RunSetup setup;
  setup.traffic = &traffic;
  EXPECT_EQ(run_kernel(kernel.name, Operation::kForward, instance.request(), setup), TILEWISE_OK)
      << problem::message();
  return traffic.read_bytes;
}

// Decoding reads the keys of a split twice where its sums overflow, and once where an output that
// is not finite has another reason.
TEST(LargeValues, DecodingComputesOnlyOverflowedSplitsAgain) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : {TILEWISE_FP64, TILEWISE_FP32, TILEWISE_BF16}) {
    Instance instance(make_case(Operation::kForward, dtype, {1, 2, 1400, 2, 1, 40}));
    clear_queries(instance.request());
    for (const Kernel* const kernel : runnable_kernels(instance.description())) {
      if (std::string(kernel->name).rfind("cpu_", 0) != 0) continue;
      const auto set_values = [&](double value) {
        set_elements(instance.request().v, [&](std::int64_t) { return value; });
      };
      set_values(1);
      const std::int64_t once = bytes_read(*kernel, instance);
      for (const double value : {large_number(dtype) / 1e4, std::nan(""), HUGE_VAL}) {
        set_values(value);
        EXPECT_EQ(bytes_read(*kernel, instance), once) << kernel->name << ", V " << value;
      }
      set_values(large_number(dtype));  // the first of them shows it
      EXPECT_EQ(bytes_read(*kernel, instance), once) << kernel->name;
      set_elements(instance.request().v, [&](std::int64_t i) {
        const RowIndex at = row_index(instance.request().v, TILEWISE_BSHD, i);
        return at.row < 100 ? 1.0 : large_number(dtype);
      });
      EXPECT_GT(bytes_read(*kernel, instance), once) << kernel->name;
      EXPECT_LE(bytes_read(*kernel, instance), 2 * once) << kernel->name;
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
