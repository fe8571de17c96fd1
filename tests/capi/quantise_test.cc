// tilewise_quantise() has the bits of its definition, on every instruction set, for any number of
// threads.
#include <gtest/gtest.h>

#include <cstdlib>
#include <tilewise/tilewise_quantise.hpp>

#include "capi/quantise_cases.h"
#include "capi/quantise_oracle.h"
#include "support/seed.h"

namespace tilewise::tests {
namespace {

// Runs on each instruction set of this machine, or on the one that the environment forces.
template <class Function>
void on_every_target(Function function) {
  if (std::getenv("TILEWISE_CPU_TARGET") != nullptr) return function();
  for (std::int32_t i = 0; i < tilewise_cpu_target_count(); ++i) {
    if (tilewise_cpu_target_available(i) == 0) continue;
    SCOPED_TRACE(tilewise_cpu_target_name(i));
    setenv("TILEWISE_CPU_TARGET", tilewise_cpu_target_name(i), 1);
    function();
  }
  unsetenv("TILEWISE_CPU_TARGET");
}

void expect_definition(const QuantiseCase& c, const QuantiseTask& input) {
  SCOPED_TRACE(c.text());
  QuantiseTask expected = input;
  expected.request = input.request;
  const auto rebase = [](QuantiseTask& task) {
    task.request.output.data = task.output_bytes().data();
    if (task.request.descale.rank != 0) task.request.descale.data = task.scales.data();
    if (task.request.saturated.rank != 0) task.request.saturated.data = &task.saturated;
  };
  rebase(expected);
  QuantiseOracle(c, expected).run();
  on_every_target([&] {
    for (const std::int32_t threads : {1, 3}) {
      QuantiseTask found = input;
      rebase(found);
      Pool pool(threads);
      ASSERT_EQ(tilewise_quantise(&found.request, pool.executor()), TILEWISE_OK)
          << tilewise_last_error();
      EXPECT_EQ(found.scales, expected.scales);
      EXPECT_EQ(found.saturated, expected.saturated);
      ASSERT_EQ(found.output_bytes(), expected.output_bytes());
    }
  });
}

TEST(Quantise, HasTheBitsOfItsDefinition) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int i = 0; i < 60 && !testing::Test::HasFailure(); ++i) {
    const QuantiseCase c = random_case(random);
    QuantiseTask task(c);
    fill_random(c, task, random);
    expect_definition(c, task);
  }
}

// Sequences have as many work items as blocks of rows.
TEST(Quantise, PackedSequencesOfVeryDifferentLengthsHaveTheBitsOfTheDefinition) {
  QuantiseCase c;
  c.rows = 1300;
  c.packed = true;
  c.scales = 2;
  c.starts = {0, 1, 1, 1, 1100, 1101, 1300};
  QuantiseTask task(c);
  fill_normal(c, task, 5);
  expect_definition(c, task);
}

TEST(Quantise, EmptyTensorsHaveScalesThatAreValid) {
  for (const std::int64_t QuantiseCase::*size :
       {&QuantiseCase::batch, &QuantiseCase::rows, &QuantiseCase::width}) {
    for (const int scales : {1, 2, 3}) {
      QuantiseCase c;
      c.*const_cast<std::int64_t QuantiseCase::*>(size) = 0;
      c.scales = scales;
      expect_definition(c, QuantiseTask(c));
    }
  }
}

TEST(Quantise, ZerosAndRowsWithoutFiniteNumbersHaveTheScaleOne) {
  for (const double x : {0.0, -0.0, HUGE_VAL, std::nan("")}) {
    QuantiseCase c;
    QuantiseTask task(c);
    fill_normal(c, task, 1);
    for (std::int64_t r = 0; r < 128; ++r)  // a block of two heads that share a scale
      for (std::int64_t h = 0; h < 2; ++h)
        for (std::int64_t d = 0; d < c.width; ++d) task.set(0, h, r, d, x);
    expect_definition(c, task);
    ASSERT_EQ(tilewise_quantise(&task.request, nullptr), TILEWISE_OK);
    EXPECT_EQ(task.scales[0], 1);
    EXPECT_EQ(task.saturated, std::isinf(x) ? 2 * 128 * c.width : 0);
  }
}

// Every code times a scale, and the numbers next to each boundary of rounding.
TEST(Quantise, EveryCodeAndEveryBoundaryOfRoundingIsExact) {
  for (const std::int32_t format : {TILEWISE_E4M3, TILEWISE_E5M2}) {
    QuantiseCase c;
    c.batch = c.heads = c.kv_heads = 1;
    c.rows = 4;
    c.width = 256;
    c.input = TILEWISE_FP32;
    c.output = format;
    c.scales = 1;
    c.fixed = true;
    QuantiseTask task(c);
    task.scales = {1};
    const auto value = [&](int code) {
      const std::uint8_t bits = static_cast<std::uint8_t>(code);
      return format == TILEWISE_E4M3 ? math::to_float(math::Float8E4M3{bits})
                                     : math::to_float(math::Float8E5M2{bits});
    };
    for (int code = 0; code < 256; ++code) {
      const float x = value(code);
      const float next = code % 128 == 127 ? x : value(code + 1);
      const float halfway = std::isfinite(next) ? (x + next) / 2 : 1.05f * x;
      task.set(0, 0, 0, code, static_cast<double>(x));
      task.set(0, 0, 1, code, static_cast<double>(halfway));
      task.set(0, 0, 2, code, static_cast<double>(std::nextafter(halfway, 0.0f)));
      task.set(0, 0, 3, code, static_cast<double>(std::nextafter(halfway, 2 * halfway)));
    }
    expect_definition(c, task);
    ASSERT_EQ(tilewise_quantise(&task.request, nullptr), TILEWISE_OK);
    for (int code = 0; code < 256; ++code) {
      if (std::isfinite(value(code))) {
        EXPECT_EQ(task.output_bytes()[static_cast<std::size_t>(code)], code);
      }
    }
  }
}

TEST(Quantise, CountsSaturatedNumbers) {
  QuantiseCase c;
  c.scales = 2;
  c.fixed = true;
  QuantiseTask task(c);
  fill_normal(c, task, 3);
  std::fill(task.scales.begin(), task.scales.end(), 1.0f / 448);
  task.saturated = 1000;  // is added to
  expect_definition(c, task);
  ASSERT_EQ(tilewise_quantise(&task.request, nullptr), TILEWISE_OK);
  EXPECT_GT(task.saturated, 1000 + 20000);  // about a third of N(0, 1)
}

// Results of this size are written past the caches.
TEST(Quantise, LargeTensorsHaveTheBitsOfSmallOnes) {
  QuantiseCase c;
  c.batch = 1;
  c.rows = 33 * 1024;
  c.heads = c.kv_heads = 8;
  c.width = 128;
  QuantiseTask task(c);
  auto* const numbers = static_cast<std::uint16_t*>(task.request.input.data);
  Random random(5);
  for (std::int64_t i = 0; i < c.rows * c.heads * c.width; ++i)
    numbers[i] = static_cast<std::uint16_t>(0x3f00 + (random.bits() & 0x80ffu));
  ASSERT_EQ(tilewise_quantise(&task.request, nullptr), TILEWISE_OK);
  QuantiseCase part = c;
  part.rows = 128;
  QuantiseTask small(part);
  for (const std::int64_t block : {0, 100, 263}) {
    const std::int64_t first = block * 128 * c.heads * c.width;
    std::memcpy(small.request.input.data, numbers + first,
                static_cast<std::size_t>(2 * 128 * c.heads * c.width));
    ASSERT_EQ(tilewise_quantise(&small.request, nullptr), TILEWISE_OK);
    EXPECT_EQ(std::memcmp(small.output_bytes().data(), task.output_bytes().data() + first,
                          small.output_bytes().size()),
              0);
  }
}

// ---- incoherent processing ----------------------------------------------------------------------

std::vector<double> normal_row(std::int64_t width, Random& random) {
  std::vector<double> row;
  for (std::int64_t d = 0; d < width; ++d) row.push_back(random.normal());
  return row;
}
double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}

TEST(Incoherent, ScoresDoNotChangeInExactArithmetic) {
  Random random(run_seed());
  for (std::int64_t width = 1; width <= 256; ++width) {
    const std::vector<double> q = normal_row(width, random), k = normal_row(width, random);
    const double score = dot(rotated(q, 11), rotated(k, 11));
    EXPECT_NEAR(score, dot(q, k), 1e-13 * std::sqrt(dot(q, q) * dot(k, k))) << width;
  }
}

TEST(Incoherent, RowsAreThoseOfTheMatrixInFp64) {
  Random random(run_seed());
  for (const std::int64_t width : {1, 5, 64, 80, 96, 128, 129, 256}) {
    QuantiseCase c;
    c.batch = c.heads = c.kv_heads = c.rows = 1;
    c.width = width;
    c.input = c.output = TILEWISE_FP32;
    c.scales = 0;
    c.incoherent = true;
    QuantiseTask task(c);
    std::vector<double> row = normal_row(width, random);
    for (std::int64_t d = 0; d < width; ++d) task.set(0, 0, 0, d, row[static_cast<std::size_t>(d)]);
    for (double& x : row) x = static_cast<double>(static_cast<float>(x));
    ASSERT_EQ(tilewise_quantise(&task.request, nullptr), TILEWISE_OK) << tilewise_last_error();
    const std::vector<double> exact = rotated(row, c.seed);
    for (std::int64_t d = 0; d < width; ++d) {
      EXPECT_NEAR(verify::read_element(task.request.output, d), exact[static_cast<std::size_t>(d)],
                  1e-6 * std::sqrt(dot(row, row)));
    }
  }
}

TEST(Incoherent, SpreadsAnOutlierAndDependsOnTheSeed) {
  QuantiseCase c;
  c.incoherent = true;
  c.input = TILEWISE_FP32;
  const auto codes = [&](std::uint64_t seed) {
    c.seed = seed;
    QuantiseTask task(c);
    fill_normal(c, task, 9);
    task.set(0, 0, 3, 5, 640.0);
    EXPECT_EQ(tilewise_quantise(&task.request, nullptr), TILEWISE_OK);
    EXPECT_LT(task.scales[0], 90.0f / 448);  // 640 / sqrt(64), and what is beside it
    return task.output_bytes();
  };
  EXPECT_EQ(codes(1), codes(1));
  EXPECT_NE(codes(1), codes(2));
  EXPECT_NE(codes(1), codes((std::uint64_t{1} << 32) + 1));
}

}  // namespace
}  // namespace tilewise::tests
