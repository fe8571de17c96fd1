// The rungs below FlashAttention-2 (cuda_flash1, cuda_standard): what they compute, what they
// refuse, and that no plan chooses them.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "cuda/device/support.h"
#include "registry/support.h"

namespace tilewise::tests {
namespace {

constexpr const char* kLadder[] = {"cuda_flash1", "cuda_standard"};

// Every mask of one band, sinks and negative scales, packed sides, and several tiles of queries and
// keys that none fills.
TEST(Device, LadderCoversEveryMaskOfOneBand) {
  if (!has_device()) GTEST_SKIP() << "no device";
  for (const std::int64_t dim : {1, 33, 64, 72, 128}) {
    for (int mask = 0; mask < 5; ++mask) {
      const std::int32_t dtype = (dim + mask) % 2 == 0 ? TILEWISE_BF16 : TILEWISE_FP16;
      Case c = make_case(Operation::kForward, dtype, {mask == 4 ? 2 : 1, 270, 333, 2, 1, dim});
      c.value_dim = mask % 2 == 0 ? dim : 129 - dim;
      c.causal = mask == 1 || mask == 3;
      if (mask == 2) c.window_left = 70, c.window_right = 9;
      if (mask == 3) c.alignment = TILEWISE_TOP_LEFT;
      if (mask == 4) c.used = {333, 0};
      if (mask == 4) c.scale = -0.3;
      c.sink = mask == 1 || mask == 4;
      c.output_dtype = dim % 3 == 0 ? TILEWISE_FP32 : 0;
      verify::Judge judge(c);
      for (const char* kernel : kLadder) {
        const verify::Verdict verdict = judge.judge(kernel);
        EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << verdict.text;
      }
    }
  }
}

TEST(Device, LadderTakesPackedSequences) {
  if (!has_device()) GTEST_SKIP() << "no device";
  for (const bool causal : {false, true}) {
    Case c = make_case(Operation::kForward, TILEWISE_BF16, {5, 0, 0, 4, 2, 40});
    c.q_packed = c.k_packed = true;
    c.q_lengths = {3, 290, 0, 128, 20};
    c.k_lengths = {200, 300, 30, 0, 20};
    c.unowned = 5;
    c.causal = causal;
    verify::Judge judge(c);
    for (const char* kernel : kLadder) {
      const verify::Verdict verdict = judge.judge(kernel);
      EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << verdict.text;
    }
  }
}

// Storing out to global memory for each tile of keys costs no accuracy.
TEST(Device, LadderTakesManyKeys) {
  if (!has_device()) GTEST_SKIP() << "no device";
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16}) {
    verify::Judge judge(make_case(Operation::kForward, dtype, {1, 130, 4000, 1, 1, 64}));
    for (const char* kernel : kLadder) {
      const verify::Verdict verdict = judge.judge(kernel);
      EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << verdict.text;
    }
  }
}

// cuda_standard supports every option: it skips no tile.
TEST(Device, StandardTakesEveryOption) {
  if (!has_device()) GTEST_SKIP() << "no device";
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16}) {
    Case c = make_case(Operation::kForward, dtype, {2, 140, 260, 4, 2, 72});
    c.softcap = 4;
    c.alibi = true;
    c.dropout_p = 0.2;
    c.bias = {true, 4, {true, true, true, true}};
    c.mask = {true, 4, {true, true, true, true}};
    c.slices = {{0, 100, 3, 90, 1, -1}, {50, 140, 60, 260, 0, 2}, {20, 140, 0, 70, 3, -1}};
    verify::Judge judge(c);
    const verify::Verdict verdict = judge.judge("cuda_standard");
    EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << verdict.text;
  }
}

// Rows of S are numbered in 32 bits. The tensors have no memory for these shapes; a plan does not
// read it.
TEST(Device, StandardRefusesMoreRowsThanItNumbers) {
  if (!has_device()) GTEST_SKIP() << "no device";
  const Instance instance(make_case(Operation::kForward, TILEWISE_BF16, {1, 1, 1, 1, 1, 1}));
  tilewise_problem request = on_cuda(instance.request());
  constexpr std::int64_t kMaxLength = (std::int64_t{1} << 29) - 1;
  for (const std::int64_t batch : {4, 5}) {
    for (const auto member : {&tilewise_problem::q, &tilewise_problem::out}) {
      (request.*member).shape[1] = kMaxLength;
      (request.*member).strides[0] = kMaxLength;
    }
    request.lse.shape[2] = request.lse.strides[0] = request.lse.strides[1] = kMaxLength;
    for (const auto member : {&tilewise_problem::q, &tilewise_problem::k, &tilewise_problem::v,
                              &tilewise_problem::out, &tilewise_problem::lse}) {
      (request.*member).shape[0] = batch;
    }
    plan::Options options;
    options.kernel = "cuda_standard";
    plan::Plan plan;
    const problem::Status status = plan::make_plan(Operation::kForward, request, options, &plan);
    EXPECT_EQ(status, batch == 4 ? TILEWISE_OK : TILEWISE_UNSUPPORTED) << problem::message();
    const bool says_why = std::string(problem::message()).find("rows") != std::string::npos;
    EXPECT_EQ(says_why, batch == 5) << problem::message();
  }
}

// dLSE, sinks and any subset of the gradients, with masks of one band and negative scales.
TEST(Device, LadderTakesGradientsOfEveryMaskOfOneBand) {
  if (!has_device()) GTEST_SKIP() << "no device";
  for (const std::int64_t dim : {33, 72, 128}) {
    for (int mask = 0; mask < 4; ++mask) {
      const std::int32_t dtype = (dim + mask) % 2 == 0 ? TILEWISE_BF16 : TILEWISE_FP16;
      Case c = make_case(Operation::kBackward, dtype, {mask == 3 ? 2 : 1, 150, 170, 4, 2, dim});
      c.value_dim = mask % 2 == 0 ? dim : 129 - dim;
      c.causal = mask == 1;
      if (mask == 2) c.window_left = 70, c.window_right = 9;
      if (mask == 3) c.used = {170, 0};
      if (mask == 3) c.scale = -0.3;
      if (mask == 1) c.gradients = dim == 33 ? verify::kDQ : verify::kDK | verify::kDV;
      c.sink = mask != 1;
      c.dlse = mask != 2;
      c.output_dtype = dim % 3 == 0 ? TILEWISE_FP32 : 0;
      verify::Judge judge(c);
      for (const char* kernel : kLadder) {
        const verify::Verdict verdict = judge.judge(kernel);
        EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << verdict.text;
      }
    }
  }
}

TEST(Device, LadderTakesGradientsOfPackedSequences) {
  if (!has_device()) GTEST_SKIP() << "no device";
  Case c = make_case(Operation::kBackward, TILEWISE_BF16, {5, 0, 0, 4, 2, 40});
  c.q_packed = c.k_packed = true;
  c.q_lengths = {3, 140, 0, 70, 20};
  c.k_lengths = {80, 150, 30, 0, 20};
  c.unowned = 5;
  c.causal = true;
  verify::Judge judge(c);
  for (const char* kernel : kLadder) {
    const verify::Verdict verdict = judge.judge(kernel);
    EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << verdict.text;
  }
}

TEST(Device, StandardTakesGradientsOfEveryOption) {
  if (!has_device()) GTEST_SKIP() << "no device";
  Case c = make_case(Operation::kBackward, TILEWISE_BF16, {2, 70, 130, 4, 2, 72});
  c.softcap = 4;
  c.alibi = true;
  c.dropout_p = 0.2;
  c.bias = {true, 4, {true, true, true, true}};
  c.mask = {true, 4, {true, true, true, true}};
  c.slices = {{0, 50, 3, 45, 1, -1}, {25, 70, 30, 130, 0, 2}, {10, 70, 0, 35, 3, -1}};
  c.gradients = verify::kDQ | verify::kDK | verify::kDV;
  verify::Judge judge(c);
  const verify::Verdict verdict = judge.judge("cuda_standard");
  EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << verdict.text;
  c.gradients |= verify::kDBias;
  verify::Judge biased(c);
  const verify::Verdict refused = biased.judge("cuda_standard");
  EXPECT_EQ(refused.result, verify::Verdict::kUnsupported);
  EXPECT_NE(refused.text.find("dbias"), std::string::npos) << refused.text;
}

// Elements that are not finite reach the gradients of the rows and keys that see them, and no
// other: here a query sees the keys up to its own, and row 60 and key 60 have them.
TEST(Device, LadderKeepsNonFiniteElementsFromWhatTheMaskHides) {
  if (!has_device()) GTEST_SKIP() << "no device";
  Case c = make_case(Operation::kBackward, TILEWISE_BF16, {1, 100, 100, 2, 1, 64});
  c.causal = true;
  for (const auto tensor : {&tilewise_problem::q, &tilewise_problem::k, &tilewise_problem::v,
                            &tilewise_problem::dout}) {
    for (const double with : {std::nan(""), HUGE_VAL}) {
      verify::Judge judge(c, [&](const tilewise_problem& request) {
        verify::write_element(request.*tensor, 60 * (request.*tensor).strides[1] + 5, with);
      });
      for (const char* kernel : kLadder) {
        const verify::Verdict verdict = judge.judge(kernel);
        EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << verdict.text;
      }
    }
  }
}

// The ladder exists for comparison: a plan that may choose takes FlashAttention-2 or -3.
TEST(Device, LadderIsNeverChosen) {
  if (!has_device()) GTEST_SKIP() << "no device";
  for (const std::int64_t dim : {64, 300}) {
    const Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, 64, 64, 2, 1, dim});
    plan::Plan plan;
    ASSERT_EQ(plan_on_cuda(c, nullptr, &plan), TILEWISE_OK) << problem::message();
    for (const char* kernel : kLadder) EXPECT_STRNE(plan.kernel->name, kernel) << plan.reason;
  }
}

}  // namespace
}  // namespace tilewise::tests
