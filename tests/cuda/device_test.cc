// What must hold of the CUDA kernels as a family: on a machine without a GPU a clear refusal and a
// library that works, on one with it coverage, determinism and plans that keep their promises.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/devices.h"
#include "registry/support.h"

namespace tilewise::tests {
namespace {

// Makes every tensor of a request one of the device, without moving it: for planning only.
tilewise_problem on_cuda(tilewise_problem request) {
  for (const auto member : {&tilewise_problem::q, &tilewise_problem::k, &tilewise_problem::v,
                            &tilewise_problem::out, &tilewise_problem::lse}) {
    (request.*member).device = TILEWISE_CUDA;
  }
  return request;
}

problem::Status plan_on_cuda(const Case& description, const char* kernel, plan::Plan* plan) {
  const Instance instance(description);
  plan::Options options;
  options.kernel = kernel;
  return plan::make_plan(Operation::kForward, on_cuda(instance.request()), options, plan);
}

TEST(Device, WithoutOneThePlanSaysSo) {
  if (has_device()) GTEST_SKIP() << "there is a device";
  const Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, 64, 64, 2, 1, 64});
  plan::Plan plan;
  EXPECT_EQ(plan_on_cuda(c, nullptr, &plan), TILEWISE_UNSUPPORTED);
  EXPECT_NE(std::string(problem::message()).find("cuda"), std::string::npos) << problem::message();
}

TEST(Device, HostTensorsNeverReachItsKernels) {
  const Instance instance(make_case(Operation::kForward, TILEWISE_BF16, {1, 64, 64, 2, 1, 64}));
  for (const Kernel* kernel : plan::kernels(Operation::kForward)) {
    if (kernel->device != TILEWISE_CUDA) continue;
    plan::Plan plan;
    plan::Options options;
    options.kernel = kernel->name;
    EXPECT_EQ(plan::make_plan(Operation::kForward, instance.request(), options, &plan),
              TILEWISE_UNSUPPORTED);
    EXPECT_NE(std::string(problem::message()).find("q is on cpu"), std::string::npos)
        << problem::message();
  }
}

TEST(Device, CpuKernelsRefuseItsTensors) {
  const Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, 64, 64, 2, 1, 64});
  plan::Plan plan;
  EXPECT_EQ(plan_on_cuda(c, "flash2", &plan), TILEWISE_UNSUPPORTED);
  EXPECT_NE(std::string(problem::message()).find("q is on cuda:0"), std::string::npos)
      << problem::message();
}

const char* ampere_kernel(std::int32_t dtype) {
  return dtype == TILEWISE_FP32 ? "cuda_fp32" : "cuda_sm80";
}

// Sizes that fill no tile, with and without the score_mod score rule, in 16 bits and in fp32.
TEST(Device, AmpereKernelsTakeEveryHeadDimension) {
  if (!has_device()) GTEST_SKIP() << "no device";
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16, TILEWISE_FP32}) {
    for (const std::int64_t dim : {1, 33, 40, 64, 72, 80, 96, 112, 128, 160, 192, 224, 256}) {
      for (const bool score_mod : {false, true}) {
        Case c = make_case(Operation::kForward, dtype, {1, 200, 333, 4, 2, dim});
        c.causal = dim % 3 != 0;
        c.value_dim = dim % 5 == 0 ? 256 - dim + 1 : dim;
        c.dropout_p = score_mod ? 0.2 : 0;
        c.softcap = score_mod ? 4 : 0;
        c.output_dtype = dim % 2 == 0 ? TILEWISE_FP32 : 0;
        verify::Judge judge(c);
        const verify::Verdict verdict = judge.judge(ampere_kernel(dtype));
        EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << verdict.text;
      }
    }
  }
}

// The tiles that are for long sequences only.
TEST(Device, AmpereKernelsTakeLongSequences) {
  if (!has_device()) GTEST_SKIP() << "no device";
  for (const std::int64_t dim : {192, 256}) {
    Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, 150, 2100, 2, 1, dim});
    c.value_dim = dim == 192 ? 128 : 256;
    c.causal = dim == 256;
    verify::Judge judge(c);
    const verify::Verdict verdict = judge.judge("cuda_sm80");
    EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << verdict.text;
  }
}

// Wide heads, for which some devices have pairs of warps: more tiles of keys than one and sizes
// that fill none, rows that see nothing, and tiles of keys that only some of a block's warps see.
TEST(Device, AmpereKernelsTakeWideHeads) {
  if (!has_device()) GTEST_SKIP() << "no device";
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16}) {
    for (int mask = 0; mask < 7; ++mask) {
      Case c = make_case(Operation::kForward, dtype, {mask == 4 ? 2 : 1, 190, 333, 2, 1, 256});
      c.causal = mask == 1 || mask == 3;
      if (mask == 1) c.q_len = 400;
      if (mask == 2) c.window_left = 70, c.window_right = 9, c.value_dim = 200;
      if (mask == 3)
        c.alignment = TILEWISE_TOP_LEFT, c.distribution = verify::Distribution::kOutliers;
      if (mask == 4) {
        c.q_packed = c.k_packed = true;
        c.q_lengths = {130, 33};
        c.k_lengths = {0, 145};
        c.unowned = 3;
        c.output_dtype = TILEWISE_FP32;
      }
      if (mask == 5) {
        c.slices = {{0, 100, 3, 90, 1, -1}, {50, 140, 60, 260, 0, 1}, {20, 140, 0, 70, 3, -1}};
        c.slice_heads = true;
        c.head_dim = 232;
        c.storage = verify::Storage::kPadded;
      }
      if (mask == 6) {  // long enough for the kernels of eight warps
        c.q_len = 140, c.k_len = 2100, c.heads = 1, c.causal = true;
        c.distribution = verify::Distribution::kOutliers;
      }
      verify::Judge judge(c);
      const verify::Verdict verdict = judge.judge("cuda_sm80");
      EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << verdict.text;
    }
  }
}

constexpr const char* kLadder[] = {"cuda_flash1", "cuda_standard"};

// What the rungs below FlashAttention-2 must take: every mask of one band, sinks and negative
// scales, packed sides, several tiles of queries and keys that none fills.
TEST(Device, LadderCoversWhatItSays) {
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

// What passes through memory for each tile of keys costs no accuracy.
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

// cuda_standard has no need to skip anything: it takes every option.
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

// Rows of S are numbered in 32 bits. Nothing lies behind these shapes, a plan reads none of it.
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

// They are there to be compared: a plan that may choose takes FlashAttention-2 or -3.
TEST(Device, LadderIsNeverChosen) {
  if (!has_device()) GTEST_SKIP() << "no device";
  for (const std::int64_t dim : {64, 300}) {
    const Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, 64, 64, 2, 1, dim});
    plan::Plan plan;
    ASSERT_EQ(plan_on_cuda(c, nullptr, &plan), TILEWISE_OK) << problem::message();
    for (const char* kernel : kLadder) EXPECT_STRNE(plan.kernel->name, kernel) << plan.reason;
  }
}

// More slices than shared memory has room for, some of one head, overlapping.
TEST(Device, AmpereKernelsTakeManySlices) {
  if (!has_device()) GTEST_SKIP() << "no device";
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP32}) {
    for (const std::int64_t count : {31, 33, 300}) {
      Case c = make_case(Operation::kForward, dtype, {2, 260, 700, 4, 2, 64});
      for (std::int64_t s = 0; s < count; ++s) {
        const std::int64_t k = s * 680 / count;
        c.slices.push_back(
            {s % 50, 200 + s % 60, k, k + 1 + s % 20, s % 4, s % 3 == 0 ? s % 4 : -1});
      }
      verify::Judge judge(c);
      const verify::Verdict verdict = judge.judge(ampere_kernel(dtype));
      EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << verdict.text;
    }
  }
}

// NaN and infinity in V behind the diagonal, in the same tile of keys as visible ones.
void expect_masked_values_reach_nothing(std::int64_t dim) {
  Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, 200, 200, 2, 1, dim});
  c.causal = true;
  Instance clean(c);
  Instance poisoned(c);
  const std::vector<double> values = values_of(clean.request().v);
  set_elements(poisoned.request().v, [&](std::int64_t i) {
    const RowIndex at = row_index(poisoned.request().v, TILEWISE_BSHD, i);
    return at.row >= 150 ? (i % 2 == 0 ? std::nan("") : HUGE_VAL)
                         : values[static_cast<std::size_t>(i)];
  });
  for (const char* kernel :
       {"cuda_sm90", "cuda_sm80", "cuda_flash1", "cuda_standard", "cuda_reference"}) {
    if (run_kernel(kernel, Operation::kForward, clean.request()) == TILEWISE_UNSUPPORTED) continue;
    ASSERT_EQ(run_kernel(kernel, Operation::kForward, poisoned.request()), TILEWISE_OK);
    const std::vector<double> expected = values_of(clean.request().out);
    const std::vector<double> got = values_of(poisoned.request().out);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const RowIndex at =
          row_index(clean.request().out, TILEWISE_BSHD, static_cast<std::int64_t>(i));
      if (at.row < 150) {
        ASSERT_NEAR(got[i], expected[i], 0.02 * std::abs(expected[i]) + 1e-2) << kernel << " " << i;
      } else {
        ASSERT_FALSE(std::isfinite(got[i])) << kernel << " row " << at.row;
      }
    }
  }
}

TEST(Device, MaskedValuesReachNothing) {
  if (!has_device()) GTEST_SKIP() << "no device";
  for (const std::int64_t dim : {64, 256}) expect_masked_values_reach_nothing(dim);
}

// Files are mapped without the right to write.
TEST(Device, InputsMayLieInReadOnlyMemory) {
  if (!has_device()) GTEST_SKIP() << "no device";
  const Instance instance(make_case(Operation::kForward, TILEWISE_FP32, {2, 30, 50, 2, 1, 16}));
  ASSERT_EQ(run_kernel("cuda_reference", Operation::kForward, instance.request()), TILEWISE_OK);
  const std::vector<std::uint64_t> expected = output_bits(Operation::kForward, instance.request());
  tilewise_problem request = instance.request();
  const auto bytes = static_cast<std::size_t>(verify::element_count(request.k)) * sizeof(float);
  void* const pages =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  std::memcpy(pages, request.k.data, bytes);
  ASSERT_EQ(mprotect(pages, bytes, PROT_READ), 0);
  request.k.data = pages;
  std::memset(request.out.data, 0xFF,
              static_cast<std::size_t>(verify::element_count(request.out)) * sizeof(float));
  EXPECT_EQ(run_kernel("cuda_reference", Operation::kForward, request), TILEWISE_OK);
  EXPECT_EQ(output_bits(Operation::kForward, request), expected);
  munmap(pages, bytes);
}

TEST(Device, ForwardIsBitwiseTheSameAgain) {
  if (!has_device()) GTEST_SKIP() << "no device";
  constexpr int kRuns = 250;
  for (const bool causal : {false, true}) {
    Case c = make_case(Operation::kForward, TILEWISE_BF16, {2, 300, 500, 4, 2, 128});
    c.causal = causal;
    const Instance instance(c);
    for (const char* kernel :
         {"cuda_sm90", "cuda_sm80", "cuda_flash1", "cuda_standard", "cuda_reference"}) {
      const tilewise_problem& request = instance.request();
      if (run_kernel(kernel, Operation::kForward, request) == TILEWISE_UNSUPPORTED) continue;
      const std::vector<std::uint64_t> bits = output_bits(Operation::kForward, request);
      for (int run = 0; run < kRuns; ++run) {
        RunSetup setup;
        setup.fill = run;
        ASSERT_EQ(run_kernel(kernel, Operation::kForward, request, setup), TILEWISE_OK);
        ASSERT_EQ(output_bits(Operation::kForward, request), bits) << kernel << " run " << run;
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
