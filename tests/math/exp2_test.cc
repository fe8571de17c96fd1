// Compares exp2 and tanh of math/exp2.h with libm in a wider type. There are too many floats for a
// test of all of them, so a seed selects a residue class of their bit patterns.
#include "math/exp2.h"

#include <gtest/gtest.h>

#include <cmath>

#include "math/number.h"
#include "support/seed.h"
#include "verify/random.h"

namespace tilewise::math {
namespace {

constexpr double kInfinity = HUGE_VAL;

// Returns |result - exact| in units of the last place of `exact` in the type of the result. If
// `exact` is below the denormals, the unit is the smallest of them.
double ulps(float result, double exact) {
  if (std::isinf(result)) return exact >= 0x1p128 * (1 - 0x1p-25) ? 0 : kInfinity;
  const int exponent = exact == 0 ? -126 : std::max(std::ilogb(exact), -126);
  return std::abs(static_cast<double>(result) - exact) / std::ldexp(1.0, exponent - 23);
}
double ulps(double result, long double exact) {
  if (std::isinf(result)) return exact >= 0x1p1024L * (1 - 0x1p-54L) ? 0 : kInfinity;
  const int exponent = exact == 0 ? -1022 : std::max(std::ilogb(exact), -1022);
  return static_cast<double>(std::fabs(static_cast<long double>(result) - exact) /
                             std::ldexp(1.0L, exponent - 52));
}

TEST(Exp2, FloatsAreWithinTheStatedUlps) {
  constexpr std::uint32_t kStep = 257;
  const std::uint64_t seed = tests::run_seed();
  TILEWISE_TRACE_SEED();
  double worst = 0;
  for (const std::uint32_t sign : {0u, 0x80000000u}) {
    const std::uint32_t end = bits_of(200.0f);
    for (std::uint32_t bits = static_cast<std::uint32_t>(seed % kStep); bits < end; bits += kStep) {
      const float x = float_of(sign | bits);
      const double error = ulps(exp2(x), std::exp2(static_cast<double>(x)));
      worst = std::max(worst, error);
      ASSERT_LE(error, 2.3) << "x = " << x;
    }
  }
  RecordProperty("worst_ulps", std::to_string(worst));
}

TEST(Exp2, DoublesAreWithinTheStatedUlps) {
  const std::uint64_t seed = tests::run_seed();
  TILEWISE_TRACE_SEED();
  verify::Random random(seed);
  for (int i = 0; i < 1'000'000; ++i) {
    const double width = i % 3 == 0 ? 2.0 : 2200.0;
    const double x = (random.uniform() - 0.5) * width;
    const double error = ulps(exp2(x), std::exp2(static_cast<long double>(x)));
    ASSERT_LE(error, 1.3) << "x = " << x;
  }
}

template <class T>
void expect_exact_values() {
  EXPECT_EQ(exp2(T(0)), T(1));
  EXPECT_EQ(exp2(-T(kInfinity)), T(0));
  EXPECT_EQ(exp2(T(kInfinity)), T(kInfinity));
  EXPECT_EQ(exp2(T(5000)), T(kInfinity));
  EXPECT_EQ(exp2(T(-5000)), T(0));
  EXPECT_TRUE(std::isnan(exp2(T(std::nan("")))));
  for (int n = -140; n < 128; ++n) EXPECT_EQ(exp2(T(n)), static_cast<T>(std::ldexp(1.0, n))) << n;
}

TEST(Exp2, IsExactWhereItMustBe) {
  expect_exact_values<float>();
  expect_exact_values<double>();
  for (int n = -1074; n < 1024; ++n) EXPECT_EQ(exp2(static_cast<double>(n)), std::ldexp(1.0, n));
}

TEST(Exp2, NeverFallsWhereItsArgumentRises) {
  float previous = 0;
  for (float x = -150; x < 128; x += 0.000731f) {
    const float now = exp2(x);
    EXPECT_GE(now * (1 + 0x1p-22f), previous) << x;
    previous = now;
  }
}

TEST(Exp2OfProduct, IsWithinTheStatedUlpsDownToTheSmallestNormalNumber) {
  const std::uint64_t seed = tests::run_seed();
  TILEWISE_TRACE_SEED();
  verify::Random random(seed);
  for (int i = 0; i < 300'000; ++i) {
    const double factor = std::exp2(8 * (random.uniform() - 0.5));
    const double exponent = -random.uniform() * (i % 3 == 0 ? 2.0 : 125.9);
    const float x = static_cast<float>(exponent / factor);
    const float unit = static_cast<float>(factor);
    const double exact = std::exp2(static_cast<double>(x) * static_cast<double>(unit));
    ASSERT_LE(ulps(exp2_of_product(x, ScaleLog2<float>(unit)), exact), 2.5) << x << " " << unit;
    // A long double has too few bits for the product of two doubles, so the rest is computed
    // separately.
    const double wide = (i % 3 == 0 ? exponent : exponent * 8) / factor;
    const long double product = static_cast<long double>(wide) * factor;
    const long double rest =
        std::fma(static_cast<long double>(wide), static_cast<long double>(factor), -product);
    const long double power = std::exp2(product);
    ASSERT_LE(ulps(exp2_of_product(wide, ScaleLog2<double>(factor)), power + power * rest * kLn2),
              1.5)
        << wide << " " << factor;
  }
}

template <class T>
void expect_exact_powers() {
  const ScaleLog2<T> one(T(1));
  for (int n = static_cast<int>(Limits<T>::kLowestProb); n <= 0; ++n)
    EXPECT_EQ(exp2_of_product(T(n), one), static_cast<T>(std::ldexp(1.0, n))) << n;
  EXPECT_EQ(exp2_of_product(-T(kInfinity), one), T(0));
  // A power that would be denormal is 0, whatever the low bits of the rounded exponent are.
  for (int n = 0; n < 5000; ++n)
    EXPECT_EQ(exp2_of_product(Limits<T>::kLowestProb - T(n) - T(0.25), one), T(0)) << n;
  EXPECT_EQ(exp2_of_product(T(-1e30), one), T(0));
  EXPECT_TRUE(std::isnan(exp2_of_product(T(std::nan("")), one)));
}

TEST(Exp2OfProduct, IsExactWhereItMustBe) {
  expect_exact_powers<float>();
  expect_exact_powers<double>();
  EXPECT_TRUE(std::isnan(exp2_of_product(float_of(0x7fffffff), ScaleLog2<float>(1.0f))));
  EXPECT_TRUE(std::isnan(exp2_of_product(float_of(0xffffffff), ScaleLog2<float>(1.0f))));
}

TEST(Tanh, IsWithinAFewUlpsOfTheResult) {
  const std::uint64_t seed = tests::run_seed();
  TILEWISE_TRACE_SEED();
  verify::Random random(seed);
  for (int i = 0; i < 300'000; ++i) {
    const double x = random.normal() * std::exp2(-12 + 16 * random.uniform());
    const float single = static_cast<float>(x);
    ASSERT_LE(ulps(tanh(single), std::tanh(static_cast<double>(single))), 9) << "x = " << single;
    ASSERT_LE(ulps(tanh(x), std::tanh(static_cast<long double>(x))), 8) << "x = " << x;
  }
}

TEST(TanhDerivative, KeepsItsAccuracyWhereTanhSaturates) {
  const std::uint64_t seed = tests::run_seed();
  TILEWISE_TRACE_SEED();
  verify::Random random(seed);
  for (int i = 0; i < 300'000; ++i) {
    const double x = random.normal() * std::exp2(-12 + 16 * random.uniform());
    const float single = static_cast<float>(x);
    const long double cosine = std::cosh(static_cast<long double>(single));
    if (std::fabs(x) > 40) continue;  // the result leaves the range of float
    const double expected = static_cast<double>(1 / (cosine * cosine));
    // The rounding error of 2|x| log2 e is multiplied by |x|.
    ASSERT_NEAR(tanh_derivative(single) / expected, 1, 1e-6 * std::max(1.0, std::fabs(x)))
        << "x = " << single;
    if (std::fabs(x) > 20) continue;
    const long double exact = std::cosh(static_cast<long double>(x));
    ASSERT_NEAR(static_cast<double>(tanh_derivative(x) * exact * exact), 1,
                1e-14 * std::max(1.0, std::fabs(x)))
        << "x = " << x;
  }
}

TEST(Tanh, SaturatesAndKeepsNaN) {
  EXPECT_EQ(tanh(100.0f), 1.0f);
  EXPECT_EQ(tanh(-100.0f), -1.0f);
  EXPECT_EQ(tanh(static_cast<float>(kInfinity)), 1.0f);
  EXPECT_EQ(tanh(-kInfinity), -1.0);
  EXPECT_EQ(tanh(0.0f), 0.0f);
  EXPECT_TRUE(std::isnan(tanh(std::nanf(""))));
  EXPECT_TRUE(std::isnan(tanh(std::nan(""))));
}

}  // namespace
}  // namespace tilewise::math
