// Gradients of slices, boolean masks, softcap and ALiBi in the Hopper kernel (cuda_sm90).
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cuda/device/mask_support.h"

namespace tilewise::tests {
namespace {

// Both rows of the table that have a block mask; a group of heads, and tiles that end early.
const Shape kGradientShapes[] = {
    {{2, 300, 400, 4, 2, 64}, 64}, {{2, 200, 300, 2, 1, 128}, 128}, {{1, 139, 81, 3, 1, 8}, 88}};

Case gradients_of(const Shape& shape, std::int32_t dtype = TILEWISE_BF16) {
  Case c = make_case(Operation::kBackward, dtype, shape.sizes);
  c.value_dim = shape.value_dim;
  return c;
}

TEST(Device, HopperGradientsTakeSlices) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  TILEWISE_TRACE_SEED();
  verify::Random random(run_seed() + 2);
  for (const Shape& shape : kGradientShapes) {
    for (int step = 0; step < 8; ++step) {
      Case c = gradients_of(shape, step % 2 == 0 ? TILEWISE_BF16 : TILEWISE_FP16);
      c.dlse = random.chance(0.5);
      c.deterministic = random.chance(0.5);
      add_slices_and_options(c, random, step);
      expect_passes("cuda_sm90", c);
    }
  }
}

// Boolean masks of every shape, alone and with another mask.
TEST(Device, HopperGradientsTakeBooleanMasks) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  TILEWISE_TRACE_SEED();
  verify::Random random(run_seed() + 3);
  for (const Shape& shape : kGradientShapes) {
    for (int step = 0; step < 6; ++step) {
      Case c = gradients_of(shape);
      c.mask = {true, 4, {random.chance(0.5), random.chance(0.5), true, true}};
      c.deterministic = random.chance(0.5);
      if (step == 0) c.causal = true;
      if (step == 1) c.window_left = c.window_right = 70;
      if (step == 2) add_random_slices(c, random, 5);
      if (step == 3) c.used = std::vector<std::int64_t>(static_cast<std::size_t>(c.batch), 71);
      if (step == 4) c.mask = {true, 4, {true, true, false, true}};
      if (step == 5) c.mask = {true, 4, {false, true, true, false}};
      if (random.chance(0.3)) c.softcap = 5;
      expect_passes("cuda_sm90", c);
    }
  }
}

// More tiles of queries than a word of the block mask has, most of them empty.
TEST(Device, HopperGradientsSkipEmptyTiles) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  for (const std::int64_t dim : {64, 128}) {
    Case c = make_case(Operation::kBackward, TILEWISE_BF16,
                       {1, dim == 64 ? 8400 : 4500, 200, 1, 1, dim});
    c.mask = {true, 4, {false, false, true, true}};
    expect_passes("cuda_sm90", c, masked_by([](std::int64_t row, std::int64_t key) {
                    return row / 128 % 9 == 2 || (key % 7 == 3 && row == 4400) ||
                           (key > 140 && row < 10);
                  }));
    c.mask.present = false;
    c.slices = {{300, 301, 0, 70, 0, -1}, {4100, 4300, 20, 170, 3, -1}, {2048, 2176, 3, 9, 0, -1}};
    expect_passes("cuda_sm90", c);
  }
}

// More partial tiles than the workspace has room for: the rows that see their keys are looked up.
TEST(Device, HopperGradientsLookUpManyPartialTiles) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  for (const Shape& shape : kGradientShapes) {
    Case c = make_case(Operation::kBackward, TILEWISE_BF16, {1, 2500, 80, 2, 1, shape.sizes[5]});
    c.value_dim = shape.value_dim;
    c.slice_heads = true;
    for (std::int64_t row = 0; row < c.q_len; row += 25)
      c.slices.push_back({row, row + 1 + row % 7, 0, 80, 0, row % 4 == 0 ? -1 : 1});
    for (const double softcap : {0.0, 5.0}) {
      c.softcap = softcap;
      expect_passes("cuda_sm90", c);
    }
  }
}

// Elements that are not finite, which some pairs see and others do not.
TEST(Device, HopperGradientsContainNonFiniteValuesUnderMasks) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  constexpr double kSpecial[] = {NAN, INFINITY, -INFINITY};
  for (const Shape& shape : kGradientShapes) {
    for (int mask = 0; mask < 3; ++mask) {
      for (const auto member : {&tilewise_problem::q, &tilewise_problem::k, &tilewise_problem::v,
                                &tilewise_problem::dout}) {
        Case c =
            make_case(Operation::kBackward, TILEWISE_BF16, {1, 300, 290, 2, 1, shape.sizes[5]});
        c.value_dim = shape.value_dim;
        c.causal = mask == 0;
        if (mask == 1)
          c.slices = {{0, 140, 0, 256, 1, -1}, {30, 300, 200, 290, 3, -1}, {5, 6, 90, 95, 0, -1}};
        if (mask == 2) c.mask = {true, 4, {false, true, true, true}};
        expect_passes("cuda_sm90", c, [&](const tilewise_problem& request) {
          const std::vector<double> numbers = verify::numbers_of(request.*member);
          set_elements(request.*member, [&](std::int64_t i) {
            const RowIndex at = row_index(request.*member, TILEWISE_BSHD, i);
            const bool special = at.row % 101 == 90 && at.column % 5 == 1;
            return special ? kSpecial[at.row % 3] : numbers[static_cast<std::size_t>(i)];
          });
        });
      }
    }
  }
}

// With the masks that are no list.
TEST(Device, HopperGradientsTakeScoreMods) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  for (const Shape& shape : kGradientShapes) {
    for (const double softcap : {0.0, 0.01, 5.0, 100.0}) {
      for (int step = softcap == 5 ? 0 : 2; step < 4; ++step) {
        Case c = gradients_of(shape, step % 2 == 0 ? TILEWISE_BF16 : TILEWISE_FP16);
        c.softcap = softcap;
        c.alibi = softcap == 0 || step > 1;
        c.alibi_per_batch = step == 3;
        c.causal = step == 1;
        if (step == 2) c.window_left = c.window_right = 70;
        if (step == 3) {
          c.q_packed = c.k_packed = true;
          c.q_lengths = {c.q_len, 0, 70};
          c.k_lengths = {c.k_len, 30, 160};
          c.batch = 3;
        }
        c.deterministic = step == 2;
        expect_passes("cuda_sm90", c);
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
