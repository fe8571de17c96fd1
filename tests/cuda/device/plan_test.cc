// Plans on a machine with or without a GPU: clear refusals, and no tensor for the wrong kernel.
#include <gtest/gtest.h>

#include <string>

#include "cuda/device/support.h"
#include "plan/description.h"
#include "registry/support.h"

namespace tilewise::tests {
namespace {

TEST(Device, PlanWithoutADeviceSaysSo) {
  if (has_device()) GTEST_SKIP() << "there is a device";
  const Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, 64, 64, 2, 1, 64});
  plan::Plan plan;
  EXPECT_EQ(plan_on_cuda(c, nullptr, &plan), TILEWISE_UNSUPPORTED);
  EXPECT_NE(std::string(problem::message()).find("cuda"), std::string::npos) << problem::message();
}

// A block for each head would leave most multiprocessors without work.
TEST(Device, FewQueriesOnManyKeysAreDivided) {
  if (!has_device()) GTEST_SKIP() << "no device";
  const auto chosen = [](const std::vector<std::int64_t>& sizes, std::int32_t dtype) {
    plan::Plan plan;
    EXPECT_EQ(plan_on_cuda(make_case(Operation::kForward, dtype, sizes), nullptr, &plan),
              TILEWISE_OK);
    return std::string(plan.kernel->name);
  };
  EXPECT_EQ(chosen({1, 1, 50000, 4, 2, 128}, TILEWISE_BF16), "cuda_decode");
  EXPECT_EQ(chosen({2, 4, 20000, 8, 2, 64}, TILEWISE_FP16), "cuda_decode");
  EXPECT_EQ(chosen({1, 1, 50000, 4, 2, 128}, TILEWISE_FP32), "cuda_decode");
  EXPECT_NE(chosen({1, 500, 500, 2, 2, 128}, TILEWISE_BF16), "cuda_decode");
  EXPECT_NE(chosen({1, 500, 500, 2, 2, 128}, TILEWISE_FP32), "cuda_decode");
  EXPECT_NE(chosen({1, 1, 50000, 4, 2, 256}, TILEWISE_FP32), "cuda_decode");
  EXPECT_NE(chosen({1, 1, 50, 2, 2, 300}, TILEWISE_BF16), "cuda_decode");
  EXPECT_NE(chosen({1, 1, 50, 2, 2, 64}, TILEWISE_FP64), "cuda_decode");
}

TEST(Device, CudaKernelsRefuseHostTensors) {
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

TEST(Device, CpuKernelsRefuseDeviceTensors) {
  const Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, 64, 64, 2, 1, 64});
  plan::Plan plan;
  EXPECT_EQ(plan_on_cuda(c, "flash2", &plan), TILEWISE_UNSUPPORTED);
  EXPECT_NE(std::string(problem::message()).find("q is on cuda:0"), std::string::npos)
      << problem::message();
}

// `tilewise info` asks each kernel about a problem without rows, heads and columns.
TEST(Device, EveryKernelIsListed) {
  for (const Operation operation : {Operation::kForward, Operation::kBackward}) {
    const std::vector<plan::Listed> rows = plan::listed_kernels(operation);
    EXPECT_EQ(rows.size(), plan::kernels(operation).size());
    for (const plan::Listed& row : rows) {
      const std::string name = row.name;
      if (name != "cuda_sm80" && name != "cuda_decode") continue;
      EXPECT_EQ(row.available, has_device()) << name << ": " << row.why_not;
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
