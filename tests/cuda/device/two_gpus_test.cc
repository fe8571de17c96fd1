// Machines with two GPUs: a plan works on the device of its tensors, whichever device is current,
// and leaves the current device as it was.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <tilewise/tilewise.h>

#include <string>
#include <vector>

#include "cuda/host/runtime.h"
#include "registry/support.h"
#include "verify/device_copy.h"

namespace tilewise::tests {
namespace {

using verify::DeviceCopy;
using verify::DeviceMemory;

constexpr Operation kForward = Operation::kForward;

std::int32_t dtype_for(const Kernel& kernel) {
  const std::string name = kernel.name;
  if (name == "cuda_reference") return TILEWISE_FP64;
  return name == "cuda_fp32" ? TILEWISE_FP32 : TILEWISE_BF16;
}

int current_device() {
  int device = -1;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  return device;
}

// The bits of a run of the kernel on `device` while another device may be current.
std::vector<std::uint64_t> bits_on(std::int32_t device, int current, const Kernel& kernel,
                                   Instance& instance, bool own_stream) {
  instance.prepare(kForward);
  cudaStream_t stream = nullptr;
  if (own_stream) {
    EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  }
  EXPECT_EQ(cudaSetDevice(current), cudaSuccess);
  std::vector<std::uint64_t> bits;
  {
    DeviceCopy copy(kForward, instance.request(), device);
    plan::Options options;
    options.kernel = kernel.name;
    plan::Plan plan;
    EXPECT_EQ(plan::make_plan(kForward, copy.request(), options, &plan), TILEWISE_OK)
        << problem::message();
    EXPECT_EQ(current_device(), current);
    const DeviceMemory workspace(device, plan.workspace_bytes + 1);
    EXPECT_EQ(cuda::synchronise(device, nullptr), TILEWISE_OK);  // the fill, on another stream
    tilewise_executor executor;
    tilewise_executor_init(&executor);
    executor.stream = stream;
    plan::RunOptions run;
    run.workspace = workspace.data();
    run.workspace_bytes = static_cast<std::size_t>(plan.workspace_bytes);
    run.executor = &executor;
    EXPECT_EQ(plan::run_plan(plan, copy.request(), run), TILEWISE_OK) << problem::message();
    EXPECT_EQ(current_device(), current);
    EXPECT_EQ(cuda::synchronise(device, stream), TILEWISE_OK);
    EXPECT_EQ(copy.fetch(), "");
    bits = output_bits(kForward, instance.request());
  }
  if (stream != nullptr) {
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }
  return bits;
}

bool is_supported(const Kernel& kernel, const Instance& instance) {
  const DeviceCopy copy(kForward, instance.request());
  plan::Options options;
  options.kernel = kernel.name;
  plan::Plan plan;
  return plan::make_plan(kForward, copy.request(), options, &plan) == TILEWISE_OK;
}

TEST(TwoGpus, EachWorksWhileTheOtherIsCurrent) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "fewer than two devices";
  int runs = 0;
  for (const Kernel* kernel : plan::kernels(kForward)) {
    if (kernel->device != TILEWISE_CUDA) continue;
    Case c = make_case(kForward, dtype_for(*kernel), {3, 300, 300, 4, 2, 64});
    c.causal = true;
    Instance instance(c);
    if (!is_supported(*kernel, instance)) {
      EXPECT_TRUE(is_partial(*kernel)) << kernel->name;
      continue;
    }
    ++runs;
    const std::vector<std::uint64_t> expected = bits_on(0, 0, *kernel, instance, false);
    for (const int current : {0, 1}) {
      for (const bool own_stream : {false, true}) {
        EXPECT_EQ(bits_on(1, current, *kernel, instance, own_stream), expected) << kernel->name;
        EXPECT_EQ(bits_on(0, current, *kernel, instance, own_stream), expected) << kernel->name;
      }
    }
  }
  EXPECT_GE(runs, 3);  // reference, fp32, sm80
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
}

TEST(TwoGpus, TensorsAndPlansOfBothAreRefused) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "fewer than two devices";
  const Instance instance(make_case(kForward, TILEWISE_BF16, {1, 64, 64, 2, 2, 64}));
  DeviceCopy here(kForward, instance.request(), 0);
  DeviceCopy there(kForward, instance.request(), 1);
  const auto message = [] { return std::string(problem::message()); };

  tilewise_problem mixed = here.request();
  mixed.v = there.request().v;
  EXPECT_EQ(tilewise_forward(&mixed, nullptr), TILEWISE_INVALID_ARGUMENT);
  EXPECT_NE(message().find("v: device is cuda:1"), std::string::npos) << message();

  tilewise_problem mistaken = here.request();
  mistaken.k.data = there.request().k.data;
  EXPECT_EQ(tilewise_forward(&mistaken, nullptr), TILEWISE_INVALID_ARGUMENT);
  EXPECT_NE(message().find("is memory of cuda:1, but the tensor's device is cuda:0"),
            std::string::npos)
      << message();

  plan::Plan plan;
  ASSERT_EQ(plan::make_plan(kForward, here.request(), {}, &plan), TILEWISE_OK);
  const DeviceMemory workspace(0, plan.workspace_bytes + 1);
  plan::RunOptions run;
  run.workspace = workspace.data();
  run.workspace_bytes = static_cast<std::size_t>(plan.workspace_bytes);
  EXPECT_EQ(plan::run_plan(plan, there.request(), run), TILEWISE_INVALID_ARGUMENT);
  EXPECT_NE(message().find("device"), std::string::npos) << message();

  tilewise_problem absent = here.request();
  for (const auto member : {&tilewise_problem::q, &tilewise_problem::k, &tilewise_problem::v,
                            &tilewise_problem::out, &tilewise_problem::lse}) {
    (absent.*member).device_index = cuda::device_count();
  }
  EXPECT_EQ(tilewise_forward(&absent, nullptr), TILEWISE_UNSUPPORTED);
  EXPECT_NE(message().find("there are"), std::string::npos) << message();

  // Nothing was written, and both still work.
  EXPECT_TRUE(here.inputs_are_intact());
  for (DeviceCopy* copy : {&here, &there}) {
    EXPECT_EQ(tilewise_forward(&copy->request(), nullptr), TILEWISE_OK) << message();
    EXPECT_EQ(copy->fetch(), "");
  }
}

}  // namespace
}  // namespace tilewise::tests
