// Slices and boolean masks in the Hopper kernel (cuda_sm90), whose key tiles come from a list.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cuda/device/mask_support.h"

namespace tilewise::tests {
namespace {

// Every row of the table that has a block mask; more tiles of keys than stages.
const Shape kShapes[] = {{{2, 300, 500, 4, 2, 64}, 64},   {{1, 450, 1100, 2, 1, 64}, 64},
                         {{2, 300, 500, 4, 2, 128}, 128}, {{1, 200, 400, 2, 1, 192}, 128},
                         {{1, 200, 300, 2, 1, 256}, 256}, {{1, 139, 81, 2, 1, 8}, 88}};

TEST(Device, HopperKernelTakesSlices) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  TILEWISE_TRACE_SEED();
  verify::Random random(run_seed());
  for (const Shape& shape : kShapes) {
    for (int step = 0; step < 8; ++step) {
      Case c = make_case(Operation::kForward, step % 2 == 0 ? TILEWISE_BF16 : TILEWISE_FP16,
                         shape.sizes);
      c.value_dim = shape.value_dim;
      add_slices_and_options(c, random, step);
      expect_passes("cuda_sm90", c);
    }
  }
}

// Boolean masks of every shape, alone and with another mask.
TEST(Device, HopperKernelTakesBooleanMasks) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  TILEWISE_TRACE_SEED();
  verify::Random random(run_seed() + 1);
  for (const Shape& shape : kShapes) {
    for (int step = 0; step < 6; ++step) {
      Case c = make_case(Operation::kForward, TILEWISE_BF16, shape.sizes);
      c.value_dim = shape.value_dim;
      if (step % 2 == 1) c.k_len -= 13;  // rows of the mask begin at any address
      c.mask = {true, 4, {random.chance(0.5), random.chance(0.5), true, true}};
      if (step == 0) c.causal = true;
      if (step == 1) c.window_left = c.window_right = 70;
      if (step == 2) add_random_slices(c, random, 5);
      if (step == 3) c.used = std::vector<std::int64_t>(static_cast<std::size_t>(c.batch), 201);
      if (step == 4) c.mask = {true, 4, {true, true, false, true}};
      if (step == 5) c.mask = {true, 4, {false, true, true, false}};
      if (random.chance(0.3)) c.softcap = 5;
      expect_passes("cuda_sm90", c);
    }
  }
}

// More key tiles than a word of the block mask has, most of them empty, and rows that see their
// first key late.
TEST(Device, HopperKernelSkipsEmptyTiles) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  for (const std::int64_t dim : {64, 256}) {
    Case c =
        make_case(Operation::kForward, TILEWISE_BF16, {1, 70, dim == 64 ? 8400 : 4500, 1, 1, dim});
    c.mask = {true, 4, {false, false, true, true}};
    expect_passes("cuda_sm90", c, masked_by([](std::int64_t row, std::int64_t key) {
                    return key / 128 % 9 == 2 || (row % 7 == 3 && key == 4400) ||
                           (row > 40 && key < 10);
                  }));
    c.mask.present = false;
    c.slices = {{0, 70, 300, 301, 0, -1}, {20, 70, 4100, 4300, 3, -1}, {3, 9, 2048, 2176, 0, -1}};
    expect_passes("cuda_sm90", c);
  }
}

// More partial tiles than the workspace has room for: what rows see of them is looked up.
TEST(Device, HopperKernelLooksUpManyPartialTiles) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  for (const Shape& shape : kShapes) {
    Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, 80, 5000, 2, 1, shape.sizes[5]});
    c.value_dim = shape.value_dim;
    c.slice_heads = true;
    for (std::int64_t key = 0; key < c.k_len; key += 25)
      c.slices.push_back({0, 80, key, key + 1 + key % 7, 0, key % 4 == 0 ? -1 : 1});
    for (const double softcap : {0.0, 5.0}) {
      c.softcap = softcap;
      expect_passes("cuda_sm90", c);
    }
  }
}

// Elements of V that are not finite, where some rows see them and others do not, and values so
// large that sums of them overflow.
TEST(Device, HopperKernelContainsNonFiniteValuesUnderMasks) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  for (const Shape& shape : kShapes) {
    for (const bool slices : {false, true}) {
      for (const double factor : {1.0, 1e37}) {
        Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, 140, 700, 2, 1, shape.sizes[5]});
        c.value_dim = shape.value_dim;
        if (slices) {
          c.slices = {{0, 140, 0, 256, 1, -1}, {30, 140, 300, 700, 3, -1}, {5, 6, 90, 95, 0, -1}};
        } else {
          c.mask = {true, 4, {false, true, true, true}};
        }
        expect_passes("cuda_sm90", c, [&](const tilewise_problem& request) {
          const std::vector<double> v = verify::numbers_of(request.v);
          constexpr double kSpecial[] = {NAN, INFINITY, -INFINITY};
          set_elements(request.v, [&](std::int64_t i) {
            const RowIndex at = row_index(request.v, TILEWISE_BSHD, i);
            const bool special = at.row % 101 == 90 && at.column % 5 == 1;
            return special ? kSpecial[at.row % 3] : factor * v[static_cast<std::size_t>(i)];
          });
        });
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
