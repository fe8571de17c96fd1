// For the tests on devices: which GPU there is, and plans for it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cuda/host/runtime.h"
#include "registry/support.h"
#include "verify/device_copy.h"

namespace tilewise::tests {

inline bool has_device() { return cuda::device_count() > 0; }
inline bool has_hopper() {
  cuda::DeviceInfo device;
  return has_device() && cuda::find_device(0, &device) == TILEWISE_OK && device.major == 9;
}

// Makes every tensor of a request a tensor of the device, without moving it: for plans only.
inline tilewise_problem on_cuda(tilewise_problem request) {
  for (const auto member : {&tilewise_problem::q, &tilewise_problem::k, &tilewise_problem::v,
                            &tilewise_problem::out, &tilewise_problem::lse}) {
    (request.*member).device = TILEWISE_CUDA;
  }
  return request;
}

inline problem::Status plan_on_cuda(const Case& description, const char* kernel, plan::Plan* plan) {
  const Instance instance(description);
  plan::Options options;
  options.kernel = kernel;
  return plan::make_plan(Operation::kForward, on_cuda(instance.request()), options, plan);
}

// The message of a kernel that refuses a case.
inline std::string refusal(const Case& c, const char* kernel) {
  plan::Plan plan;
  EXPECT_EQ(plan_on_cuda(c, kernel, &plan), TILEWISE_UNSUPPORTED);
  return problem::message();
}

// The bytes of a workspace that a launch has written if it flags no row.
inline constexpr std::int64_t kCounterBytes = 16;
// Those that each block writes besides, beyond D 128: what it leaves to the careful kernel.
inline constexpr std::int64_t kHandoverBytes = 12;

// The number of bytes of a workspace full of 0xFF that a kernel has written.
inline std::int64_t written_workspace(const char* kernel, const tilewise_problem& request) {
  const verify::DeviceCopy copy(Operation::kForward, request);
  plan::Options options;
  options.kernel = kernel;
  plan::Plan plan;
  EXPECT_EQ(plan::make_plan(Operation::kForward, copy.request(), options, &plan), TILEWISE_OK);
  const verify::DeviceMemory workspace(0, plan.workspace_bytes);
  plan::RunOptions run;
  run.workspace = workspace.data();
  run.workspace_bytes = static_cast<std::size_t>(plan.workspace_bytes);
  EXPECT_EQ(plan::run_plan(plan, copy.request(), run), TILEWISE_OK) << problem::message();
  std::vector<unsigned char> bytes(run.workspace_bytes);
  EXPECT_EQ(cuda::copy(0, bytes.data(), workspace.data(), plan.workspace_bytes, nullptr),
            TILEWISE_OK);
  return std::count_if(bytes.begin(), bytes.end(), [](unsigned char b) { return b != 0xFF; });
}

// Expects that out of one head is not finite where sees_poison(row, column), and has the bits of
// `clean` elsewhere.
template <class SeesPoison>
void expect_poison_where(const Instance& clean, const Instance& poisoned,
                         const SeesPoison& sees_poison) {
  const std::int64_t columns = clean.request().out.shape[3];
  const std::vector<double> expected = verify::numbers_of(clean.request().out);
  const std::vector<double> out = verify::numbers_of(poisoned.request().out);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int64_t row = static_cast<std::int64_t>(i) / columns;
    const std::int64_t column = static_cast<std::int64_t>(i) % columns;
    ASSERT_TRUE(sees_poison(row, column) ? !std::isfinite(out[i]) : out[i] == expected[i])
        << "row " << row << ", column " << column << ": " << describe(clean.description());
  }
}

// Runs the kernel on the contents of an instance, which are not random numbers, and compares it
// with cuda_reference. value_scale: of the elements of V.
inline void expect_as_reference(Instance& instance, const std::string& what,
                                double value_scale = 1) {
  const std::int64_t columns = instance.request().out.shape[3];
  ASSERT_EQ(run_kernel("cuda_reference", Operation::kForward, instance.request()), TILEWISE_OK);
  const std::vector<double> expected = verify::numbers_of(instance.request().out);
  const std::vector<double> expected_lse = verify::numbers_of(instance.request().lse);
  verify::poison(instance.request().out);
  verify::poison(instance.request().lse);
  ASSERT_EQ(run_kernel("cuda_sm90", Operation::kForward, instance.request()), TILEWISE_OK);
  const std::vector<double> got = verify::numbers_of(instance.request().out);
  const std::vector<double> lse = verify::numbers_of(instance.request().lse);
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], 0.02 * std::abs(expected[i]) + 1e-2 * value_scale)
        << what << " row " << static_cast<std::int64_t>(i) / columns;
  }
  for (std::size_t i = 0; i < lse.size(); ++i) {
    if (expected_lse[i] == lse[i]) continue;  // -inf
    ASSERT_NEAR(lse[i], expected_lse[i], 1e-5 * std::abs(expected_lse[i]) + 1e-4)
        << what << " row " << i;
  }
}

}  // namespace tilewise::tests
