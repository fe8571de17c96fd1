// The Hopper kernel (cuda_sm90) on data that its fast steps are not made for: scores that grow,
// huge scores and values, and elements that are not finite.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cuda/device/support.h"

namespace tilewise::tests {
namespace {

// Scores of several hundred, a few keys that are far larger than others, rows that rise or fall
// from key to key: the fast path computes all of them, and flags no row for the slow one.
TEST(Device, HopperKernelFlagsNoRowOfFiniteScores) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  constexpr int kKinds = 6;
  const char* const kinds[kKinds] = {"times 64", "times 3000", "outlier keys",
                                     "rising",   "falling",    "sawtooth"};
  const struct {
    std::int64_t keys, dim;
  } shapes[] = {{700, 64}, {1200, 64}, {700, 128}, {1100, 192}, {500, 256}};
  for (const auto& shape : shapes) {
    for (int kind = 0; kind < kKinds; ++kind) {
      Case c = make_case(Operation::kForward, kind % 2 == 0 ? TILEWISE_BF16 : TILEWISE_FP16,
                         {1, 200, shape.keys, 1, 1, shape.dim});
      if (shape.dim == 192) c.value_dim = 128;
      c.causal = kind % 3 == 0;
      Instance instance(c);
      const std::vector<double> q = verify::numbers_of(instance.request().q);
      const std::vector<double> k = verify::numbers_of(instance.request().k);
      const double factor = kind == 0 ? 64 : kind == 1 ? 3000 : 1;
      // From column 0 on, a key's scores differ from those of its neighbours by this much.
      const double slope = 40 * std::sqrt(static_cast<double>(shape.dim));
      set_elements(instance.request().q, [&](std::int64_t i) {
        return kind > 2 && i % shape.dim == 0 ? 1.0 : factor * q[static_cast<std::size_t>(i)];
      });
      set_elements(instance.request().k, [&](std::int64_t i) {
        const std::int64_t key = i / shape.dim;
        const double own = k[static_cast<std::size_t>(i)];
        if (kind == 2) return key % 97 == 5 ? 30 * own : own;
        if (kind <= 2 || i % shape.dim != 0) return own;
        const double place = static_cast<double>(key) / 100;
        if (kind == 5) return slope * (place - std::floor(place));
        return slope * (kind == 3 ? place : -place);
      });
      const std::string what = std::string(kinds[kind]) + ", D " + std::to_string(shape.dim);
      expect_as_reference(instance, what);
      // Where a careful kernel follows, both blocks tell it what they leave.
      const std::int64_t written = kCounterBytes + (shape.dim > 128 ? 2 * kHandoverBytes : 0);
      EXPECT_LE(written_workspace("cuda_sm90", instance.request()), written) << what;
    }
  }
}

// Elements of V that are not finite reach the rows that see them, in their column. All other
// numbers keep the bits that they have without them, also beside such rows and in cut key tiles.
TEST(Device, HopperKernelKeepsBitsNextToNonFiniteValues) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  const double poisons[] = {std::nan(""), INFINITY, -INFINITY};
  const struct {
    std::int64_t rows, dim, value_dim, window;
  } shapes[] = {{200, 64, 64, -1},   {1100, 64, 64, 300}, {300, 128, 128, -1}, {600, 128, 128, 255},
                {200, 192, 128, -1}, {300, 128, 72, 40},  {300, 256, 256, -1}, {300, 256, 200, 90}};
  for (const auto& shape : shapes) {
    Case c =
        make_case(Operation::kForward, TILEWISE_BF16, {1, shape.rows, shape.rows, 1, 1, shape.dim});
    c.value_dim = shape.value_dim;
    c.causal = true;
    c.window_left = shape.window;
    Instance clean(c);
    Instance poisoned(c);
    std::vector<std::int64_t> keys;
    for (std::int64_t key = 3; key < shape.rows; key += 61) {
      keys.push_back(key);
      const tilewise_tensor& v = poisoned.request().v;
      verify::write_element(v, key * v.strides[1] + key % shape.value_dim,
                            poisons[static_cast<std::size_t>(key % 3)]);
    }
    run_for_bits("cuda_sm90", clean);
    run_for_bits("cuda_sm90", poisoned);
    expect_poison_where(clean, poisoned, [&](std::int64_t row, std::int64_t column) {
      return std::any_of(keys.begin(), keys.end(), [&](std::int64_t key) {
        return key % shape.value_dim == column && key <= row &&
               (shape.window < 0 || key >= row - shape.window);
      });
    });
    if (HasFatalFailure()) return;
    EXPECT_EQ(verify::numbers_of(poisoned.request().lse), verify::numbers_of(clean.request().lse))
        << describe(c);
  }
}

// Scores whose anchors cannot be rounded, and values whose unnormalised sums overflow, from the
// first key on or later.
TEST(Device, HopperKernelTakesHugeScoresAndValues) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  for (const std::int64_t dim : {64, 128, 192, 256}) {
    for (const int kind : {0, 1, 2}) {
      Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, 200, 700, 1, 1, dim});
      c.value_dim = dim == 192 ? 128 : dim;
      c.causal = kind == 1;
      Instance instance(c);
      const std::vector<double> q = verify::numbers_of(instance.request().q);
      const std::vector<double> v = verify::numbers_of(instance.request().v);
      set_elements(instance.request().q, [&](std::int64_t i) {
        return (kind == 0 ? 1e12 : 1) * q[static_cast<std::size_t>(i)];
      });
      set_elements(instance.request().v, [&](std::int64_t i) {
        const bool large = kind == 1 || (kind == 2 && i / c.value_dim > 300);
        return (large ? 1e37 : 1) * v[static_cast<std::size_t>(i)];
      });
      expect_as_reference(instance, "kind " + std::to_string(kind) + ", " + describe(c),
                          kind == 0 ? 1 : 1e37);
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
