// bf16 and fp16: all 65536 patterns, and every rounding boundary between neighbours.
#include "math/number.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tilewise::math {
namespace {

// Returns the value of a 16-bit pattern with `mantissa` bits of mantissa and the given exponent
// bias, by the definition of the format.
double value_of(std::uint16_t bits, int mantissa, int bias) {
  const int exponent_bits = 15 - mantissa;
  const int exponent = (bits & 0x7fff) >> mantissa;
  const int fraction = bits & ((1 << mantissa) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction == 0 ? sign * HUGE_VAL : std::nan("");
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - mantissa);
  return sign * std::ldexp(fraction + (1 << mantissa), exponent - bias - mantissa);
}
double value_of(BFloat16 x) { return value_of(x.bits, 7, 127); }
double value_of(Float16 x) { return value_of(x.bits, 10, 15); }

template <class S>
S from_float(float x);
template <>
BFloat16 from_float(float x) {
  return to_bfloat16(x);
}
template <>
Float16 from_float(float x) {
  return to_float16(x);
}

template <class S>
void expect_all_patterns() {
  for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const S x = {static_cast<std::uint16_t>(pattern)};
    const double exact = value_of(x);
    const float widened = to_float(x);
    if (std::isnan(exact)) {
      ASSERT_TRUE(std::isnan(widened)) << pattern;
      ASSERT_TRUE(std::isnan(value_of(from_float<S>(widened)))) << pattern;
      continue;
    }
    ASSERT_EQ(static_cast<double>(widened), exact) << pattern;
    ASSERT_EQ(std::signbit(widened), std::signbit(exact)) << pattern;
    ASSERT_EQ(from_float<S>(widened).bits, x.bits) << pattern;
  }
}

// A number halfway between two neighbours rounds to the even one, and a float next to it to the
// nearer one. Doubles give the same, and must not be rounded to float first.
template <class S>
void expect_all_boundaries(std::uint16_t infinity, double beyond) {
  for (std::uint16_t bits = 0; bits < infinity; ++bits) {
    const S low = {bits};
    const S high = {static_cast<std::uint16_t>(bits + 1)};
    const double upper = high.bits == infinity ? beyond : value_of(high);
    const double middle = (value_of(low) + upper) / 2;
    const S even = bits % 2 == 0 ? low : high;
    const auto stored = [](double x) {
      S result;
      store(x, &result);
      return result.bits;
    };
    const float half = static_cast<float>(middle);
    if (static_cast<double>(half) == middle) {
      ASSERT_EQ(from_float<S>(half).bits, even.bits) << bits;
      ASSERT_EQ(from_float<S>(-half).bits, even.bits | 0x8000) << bits;
      ASSERT_EQ(from_float<S>(std::nextafter(half, 0.0f)).bits, low.bits) << bits;
      ASSERT_EQ(from_float<S>(std::nextafter(half, HUGE_VALF)).bits, high.bits) << bits;
    }
    ASSERT_EQ(stored(middle), even.bits) << bits;
    ASSERT_EQ(stored(std::nextafter(middle, 0.0)), low.bits) << bits;
    ASSERT_EQ(stored(std::nextafter(middle, HUGE_VAL)), high.bits) << bits;
    ASSERT_EQ(stored(-std::nextafter(middle, HUGE_VAL)), high.bits | 0x8000) << bits;
  }
}

TEST(Number, EveryBFloat16PatternConvertsExactly) { expect_all_patterns<BFloat16>(); }
TEST(Number, EveryFloat16PatternConvertsExactly) { expect_all_patterns<Float16>(); }
TEST(Number, BFloat16RoundsToNearestEven) { expect_all_boundaries<BFloat16>(0x7f80, 0x1p128); }
TEST(Number, Float16RoundsToNearestEven) { expect_all_boundaries<Float16>(0x7c00, 0x1p16); }

TEST(Number, OverflowBecomesInfinityAndNaNStays) {
  EXPECT_EQ(to_bfloat16(HUGE_VALF).bits, 0x7f80);
  EXPECT_EQ(to_float16(-HUGE_VALF).bits, 0xfc00);
  EXPECT_EQ(to_float16(1e30f).bits, 0x7c00);
  EXPECT_EQ(to_float16(1e-30f).bits, 0);
  EXPECT_EQ(to_float16(-0.0f).bits, 0x8000);
  EXPECT_EQ(to_bfloat16(-0.0f).bits, 0x8000);
  // A NaN whose payload lies in the bits that are cut off must not become infinity.
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(float_of(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(to_float(to_float16(float_of(0xff800001u)))));
}

}  // namespace
}  // namespace tilewise::math
