// The Hopper backward kernel (cuda_sm90) for D or Dv over 128: pairs of blocks.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cuda/device/support.h"
#include "verify/judge.h"

namespace tilewise::tests {
namespace {

constexpr const char* kBackwardKernel = "cuda_sm90";

Case wide_case(std::int32_t dtype, const std::vector<std::int64_t>& sizes, std::int64_t value_dim) {
  Case c = make_case(Operation::kBackward, dtype, sizes);
  c.value_dim = value_dim;
  return c;
}

// Sizes around the tiles (64 queries, 64 keys of a block, 128 of a pair), all that cuts a tile, and
// all layouts.
TEST(Device, HopperBackwardTakesWideHeads) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  std::vector<Case> cases;
  Case grouped = wide_case(TILEWISE_BF16, {1, 200, 270, 4, 2, 256}, 256);
  grouped.causal = grouped.sink = grouped.dlse = true;
  cases.push_back(grouped);
  Case empty_rows = wide_case(TILEWISE_FP16, {1, 270, 130, 1, 1, 256}, 256);
  empty_rows.causal = empty_rows.dlse = true;
  cases.push_back(empty_rows);
  empty_rows.alignment = TILEWISE_TOP_LEFT;
  cases.push_back(empty_rows);
  Case window = wide_case(TILEWISE_BF16, {1, 150, 400, 2, 1, 192}, 128);
  window.window_left = 70;
  window.window_right = 33;
  window.storage = verify::Storage::kTransposed;
  window.output_dtype = TILEWISE_FP32;
  cases.push_back(window);
  Case narrow_keys = wide_case(TILEWISE_FP16, {2, 65, 64, 1, 1, 64}, 256);
  narrow_keys.scale = -0.3;
  cases.push_back(narrow_keys);
  Case narrow_values = wide_case(TILEWISE_BF16, {1, 64, 129, 2, 2, 136}, 8);
  narrow_values.storage = verify::Storage::kExpanded;
  cases.push_back(narrow_values);
  Case interleaved = wide_case(TILEWISE_FP16, {2, 63, 63, 2, 2, 192}, 192);
  interleaved.storage = verify::Storage::kInterleaved;
  cases.push_back(interleaved);
  Case single = wide_case(TILEWISE_BF16, {1, 1, 1, 1, 1, 248}, 136);
  cases.push_back(single);
  Case packed = wide_case(TILEWISE_BF16, {6, 0, 0, 2, 1, 192}, 192);
  packed.q_packed = packed.k_packed = packed.causal = true;
  packed.q_lengths = {0, 17, 1, 129, 0, 33};
  packed.k_lengths = {5, 17, 40, 140, 0, 20};
  packed.unowned = 3;
  cases.push_back(packed);
  Case used = wide_case(TILEWISE_FP16, {3, 70, 150, 2, 1, 160}, 256);
  used.used_q = {70, 0, 33};
  used.used = {90, 40, 0};
  cases.push_back(used);
  Case cut = wide_case(TILEWISE_BF16, {1, 100, 150, 2, 1, 256}, 256);
  cut.causal = true;
  cut.q_cuts = {40};
  cut.k_cuts = {65};
  cut.output_dtype = TILEWISE_FP32;  // results accumulate
  cases.push_back(cut);
  for (const unsigned gradients : {verify::kDQ, verify::kDK, verify::kDV}) {
    Case one = wide_case(TILEWISE_BF16, {1, 70, 80, 1, 1, 256}, 192);
    one.gradients = gradients;
    cases.push_back(one);
  }
  for (const Case& c : cases) expect_passes(kBackwardKernel, c);
}

// In a fixed order, whichever blocks run first.
TEST(Device, HopperBackwardRepeatsTheBitsOfWideHeads) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  constexpr int kRuns = 3;
  for (const bool causal : {false, true}) {
    Case c = wide_case(TILEWISE_BF16, {1, 70, 600, 2, 1, 256}, 256);
    c.causal = causal;
    c.deterministic = true;
    Instance instance(c);
    give_forward_results(instance);
    const std::vector<std::uint64_t> bits = run_for_bits(kBackwardKernel, instance);
    for (int run = 0; run < kRuns; ++run) EXPECT_EQ(run_for_bits(kBackwardKernel, instance), bits);
    expect_passes(kBackwardKernel, c);
  }
}

// Elements that are not finite, where a mask hides them from some rows or from all.
TEST(Device, HopperBackwardContainsNonFiniteValuesInWideHeads) {
  if (!has_hopper()) GTEST_SKIP() << "no Hopper device";
  constexpr tilewise_tensor tilewise_problem::*kTensors[] = {
      &tilewise_problem::q, &tilewise_problem::k, &tilewise_problem::v, &tilewise_problem::dout};
  for (const auto tensor : kTensors) {
    for (const double value : {std::nan(""), HUGE_VAL}) {
      Case c = wide_case(TILEWISE_BF16, {1, 150, 200, 2, 1, 256}, 256);
      c.causal = true;
      c.alignment = TILEWISE_TOP_LEFT;  // no query sees key 170; queries from 70 on see key 70
      if (value == HUGE_VAL) c.window_left = 30;
      expect_passes(kBackwardKernel, c, [&](const tilewise_problem& request) {
        const tilewise_tensor& poisoned = request.*tensor;
        const bool of_queries = poisoned.shape[1] == 150;
        for (const std::int64_t row : {70, of_queries ? 3 : 170})
          verify::write_element(poisoned, row * poisoned.strides[1] + 200, value);
      });
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
