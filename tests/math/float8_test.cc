// e4m3 and e5m2: all 256 codes, and every rounding boundary between neighbours.
#include "math/float8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tilewise::math {
namespace {

// Returns the value of a code by the definition of the format.
double value_of(std::uint8_t bits, int mantissa, int bias, bool has_infinity) {
  const int exponent = (bits & 0x7f) >> mantissa;
  const int fraction = bits & ((1 << mantissa) - 1);
  const double sign = bits & 0x80 ? -1 : 1;
  const bool last = exponent == (1 << (7 - mantissa)) - 1;
  if (has_infinity && last) return fraction == 0 ? sign * HUGE_VAL : std::nan("");
  if ((bits & 0x7f) == 0x7f) return std::nan("");
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - mantissa);
  return sign * std::ldexp(fraction + (1 << mantissa), exponent - bias - mantissa);
}
double value_of(Float8E4M3 x) { return value_of(x.bits, 3, 7, false); }
double value_of(Float8E5M2 x) { return value_of(x.bits, 2, 15, true); }

template <class Format>
class Float8 : public testing::Test {};
using Formats = testing::Types<Float8E4M3, Float8E5M2>;
TYPED_TEST_SUITE(Float8, Formats);

TYPED_TEST(Float8, EveryCodeIsReadExactlyAndWrittenBack) {
  for (int code = 0; code < 256; ++code) {
    const TypeParam x = {static_cast<std::uint8_t>(code)};
    const double exact = value_of(x);
    const float widened = to_float(x);
    if (std::isnan(exact)) {
      EXPECT_TRUE(std::isnan(widened)) << code;
      EXPECT_TRUE(std::isnan(value_of(to_float8<TypeParam>(widened)))) << code;
      continue;
    }
    EXPECT_EQ(static_cast<double>(widened), exact) << code;
    EXPECT_EQ(std::signbit(widened), std::signbit(exact)) << code;
    EXPECT_EQ(load<double>(x), exact) << code;
    if (std::isfinite(exact)) {
      EXPECT_EQ(to_float8<TypeParam>(widened).bits, x.bits) << code;
    }
  }
}

// A number halfway between two neighbours rounds to the even one, and a float or a double next to
// it to the nearer one.
TYPED_TEST(Float8, RoundsToNearestEven) {
  for (std::uint32_t code = 0; code < Float8Layout<TypeParam>::kLargest; ++code) {
    const TypeParam low = {static_cast<std::uint8_t>(code)};
    const TypeParam high = {static_cast<std::uint8_t>(code + 1)};
    const float halfway = (to_float(low) + to_float(high)) / 2;
    const auto rounded = [](auto x) {
      TypeParam result;
      store(x, &result);
      return static_cast<int>(result.bits);
    };
    EXPECT_EQ(rounded(halfway), code % 2 == 0 ? low.bits : high.bits) << code;
    EXPECT_EQ(rounded(std::nextafter(halfway, 0.0f)), low.bits) << code;
    EXPECT_EQ(rounded(std::nextafter(halfway, 1e9f)), high.bits) << code;
    const double wide = static_cast<double>(halfway);
    EXPECT_EQ(rounded(std::nextafter(wide, 0.0)), low.bits) << code;
    EXPECT_EQ(rounded(std::nextafter(wide, 1e9)), high.bits) << code;
    EXPECT_EQ(rounded(-wide), 0x80 | (code % 2 == 0 ? low.bits : high.bits)) << code;
  }
}

TYPED_TEST(Float8, SaturatesAtTheLargestNumber) {
  const float largest = Float8Layout<TypeParam>::kLargestNumber;
  for (const float x : {largest, std::nextafter(largest, 1e9f), 1.5f * largest,
                        std::numeric_limits<float>::max(), HUGE_VALF}) {
    EXPECT_EQ(to_float(to_float8<TypeParam>(x)), largest) << x;
    EXPECT_EQ(to_float(to_float8<TypeParam>(-x)), -largest) << x;
  }
}

}  // namespace
}  // namespace tilewise::math
