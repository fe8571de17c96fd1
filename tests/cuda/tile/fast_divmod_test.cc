// Division by a prepared divisor is division.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "cuda/tile/fast_divmod.h"
#include "support/seed.h"

namespace tilewise::cuda {
namespace {

TEST(FastDivmod, IsDivision) {
  constexpr std::int32_t kMax = 2147483647;
  std::mt19937 random(static_cast<std::uint32_t>(tests::run_seed()));
  std::vector<std::int32_t> values = {
      1,        2,     3,     5,     7,        127,          128,
      129,      65535, 65536, 65537, kMax / 2, kMax / 2 + 1, kMax / 2 + 2,
      kMax - 1, kMax};
  for (int i = 0; i < 1000; ++i)
    values.push_back(std::max(1, static_cast<std::int32_t>(random() >> (1 + i % 31))));
  for (const std::int32_t value : values) {
    const tile::FastDivmod divisor(value);
    EXPECT_EQ(divisor.value(), value);
    // Next to multiples of the divisor, where a wrong quotient shows first.
    std::vector<std::int32_t> dividends = {0, 1, value - 1, value, kMax / value * value, kMax};
    for (int i = 0; i < 100; ++i) {
      const auto dividend = static_cast<std::int32_t>(random() >> (1 + i % 31));
      dividends.insert(dividends.end(), {dividend, dividend - dividend % value});
      if (dividends.back() > 0) dividends.push_back(dividends.back() - 1);
    }
    for (const std::int32_t dividend : dividends) {
      ASSERT_EQ(dividend / divisor, dividend / value) << dividend << " / " << value;
      ASSERT_EQ(dividend % divisor, dividend % value) << dividend << " % " << value;
    }
  }
}

}  // namespace
}  // namespace tilewise::cuda
