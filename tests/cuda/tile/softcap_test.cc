// The softcap of the 16-bit kernels against the formula in double.
#include "cuda/tile/softcap.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tilewise::cuda::tile {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double capped(double product, float scale, float cap) {
  return static_cast<double>(cap) * std::tanh(product * scale / cap);
}

TEST(Softcap, KeepsItsErrorBound) {
  for (const float cap : {1e-3f, 1.0f, 30.0f, 50.0f, 1e4f, 1e30f}) {
    for (const float scale : {0.125f, 0.0883883476f, -1.0f, 3e-6f}) {
      const Softcap softcap(score_scaling_of(scale, cap));
      for (double exponent = -30; exponent < 20; exponent += 0.0007) {
        const auto product = static_cast<float>(std::exp2(exponent) * cap / scale);
        const double expected = capped(product, scale, cap);
        ASSERT_NEAR(softcap(product) / expected, 1, 0x1p-20)
            << product << " " << scale << " " << cap;
        ASSERT_EQ(softcap(-product), -softcap(product));
      }
    }
  }
}

TEST(Softcap, ShortFormKeepsItsErrorBound) {
  for (const float cap : {0x1p-6f, 1.0f, 30.0f, 50.0f, 64.0f}) {
    for (const float scale : {0.125f, 0.0883883476f, -1.0f, 3e-6f}) {
      const ScoreScaling scaling = score_scaling_of(scale, cap);
      ASSERT_NE(scaling.short_scale_log2, 0);
      const ShortSoftcap softcap(scaling);
      for (double exponent = -30; exponent < 20; exponent += 0.0007) {
        for (const double sign : {-1.0, 1.0}) {
          const auto product = static_cast<float>(sign * std::exp2(exponent) * cap / scale);
          const double expected = capped(product, scale, cap);
          ASSERT_NEAR(softcap(product), expected, 0x1p-23 * cap + 0x1p-21 * std::fabs(expected))
              << product << " " << scale << " " << cap;
        }
      }
      EXPECT_EQ(softcap(0.0f), 0.0f);
      EXPECT_TRUE(std::isnan(softcap(std::nanf(""))));
      const float sign = scale < 0 ? -1.0f : 1.0f;
      for (const float product : {kInfinity, 3e38f}) {
        EXPECT_NEAR(softcap(product), sign * cap, 0x1p-22 * cap);
        EXPECT_NEAR(softcap(-product), -sign * cap, 0x1p-22 * cap);
      }
    }
  }
}

TEST(Softcap, ShortFormIsForCapsInUse) {
  EXPECT_EQ(score_scaling_of(0.125, 64.5).short_scale_log2, 0);
  EXPECT_EQ(score_scaling_of(0.125, 0x1p-7).short_scale_log2, 0);
  EXPECT_EQ(score_scaling_of(0.125, 0).short_scale_log2, 0);
  EXPECT_EQ(score_scaling_of(0.125, 0).cap, 0);
  EXPECT_GT(score_scaling_of(0.125, 1e-60).cap, 0);
  EXPECT_EQ(score_scaling_of(1e30, 30).short_scale_log2, 0);
  EXPECT_EQ(score_scaling_of(1e-30, 30).short_scale_log2, 0);
  EXPECT_EQ(score_scaling_of(std::nan(""), 30).short_scale_log2, 0);
}

TEST(Softcap, FarAboveTheScoresItChangesNothing) {
  const Softcap softcap(score_scaling_of(0.125, 1e10));
  for (float product = 1e-20f; product < 1e4f; product *= 1.7f)
    EXPECT_EQ(softcap(product), product * 0.125f);
}

TEST(Softcap, TakesAnyNumber) {
  for (const float scale : {0.125f, -0.125f}) {
    for (const float cap : {1e-42f, 1e-30f, 2.0f, 1e35f}) {
      const Softcap softcap(score_scaling_of(scale, cap));
      EXPECT_TRUE(std::isnan(softcap(std::nanf(""))));
      EXPECT_EQ(softcap(0.0f), 0.0f);
      for (const float product : {kInfinity, -kInfinity, 3e38f}) {
        const double expected = capped(product, scale, cap);
        EXPECT_NEAR(softcap(product), expected, std::fmax(0x1p-20 * cap, 1e-29)) << cap;
      }
    }
  }
  const Softcap none(score_scaling_of(0, 30));
  EXPECT_EQ(none(1e30f), 0.0f);
}

}  // namespace
}  // namespace tilewise::cuda::tile
