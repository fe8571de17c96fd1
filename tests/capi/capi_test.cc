// Checks of raw pointers and struct sizes; reading the registry through the interface.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "problem/sample.h"

namespace tilewise::tests {
namespace {

bool message_has(const char* part) {
  return std::string(tilewise_last_error()).find(part) != std::string::npos;
}

TEST(CApi, EveryStatusHasAName) {
  EXPECT_STREQ(tilewise_status_name(TILEWISE_OK), "OK");
  EXPECT_STREQ(tilewise_status_name(TILEWISE_INVALID_ARGUMENT), "INVALID_ARGUMENT");
  EXPECT_STREQ(tilewise_status_name(TILEWISE_UNSUPPORTED), "UNSUPPORTED");
  EXPECT_STREQ(tilewise_status_name(TILEWISE_NO_MEMORY), "NO_MEMORY");
  EXPECT_STREQ(tilewise_status_name(TILEWISE_DEVICE_ERROR), "DEVICE_ERROR");
  EXPECT_STREQ(tilewise_status_name(TILEWISE_INTERNAL_ERROR), "INTERNAL_ERROR");
  EXPECT_STREQ(tilewise_status_name(-7), "unknown status");
}

TEST(CApi, VersionIsThatOfTheHeader) {
  EXPECT_EQ(std::string(tilewise_version()), std::to_string(TILEWISE_VERSION_MAJOR) + "." +
                                                 std::to_string(TILEWISE_VERSION_MINOR) + "." +
                                                 std::to_string(TILEWISE_VERSION_PATCH));
}

TEST(CApi, StructsStartFromInit) {
  tilewise_problem problem;
  std::memset(&problem, 0xFF, sizeof(problem));
  tilewise_problem_init(&problem);
  EXPECT_EQ(problem.struct_size, sizeof(problem));
  EXPECT_EQ(problem.window_left, -1);
  EXPECT_EQ(problem.window_right, -1);
  EXPECT_EQ(problem.max_seqlen_q, -1);
  EXPECT_EQ(problem.max_seqlen_k, -1);
  EXPECT_EQ(problem.softmax_scale, TILEWISE_DEFAULT_SCALE);
  for (const problem::NamedTensor& named : problem::kTensors) {
    EXPECT_EQ((problem.*named.member).rank, 0) << named.name;
  }
  tilewise_problem_init(nullptr);
  tilewise_executor_init(nullptr);
  tilewise_plan_options_init(nullptr);
}

TEST(CApi, ContiguousTensorsAreRowMajor) {
  const std::int64_t shape[] = {2, 3, 0, 5};
  int data = 0;
  const tilewise_tensor tensor = tilewise_contiguous(&data, TILEWISE_FP16, 4, shape);
  EXPECT_EQ(tensor.rank, 4);
  EXPECT_EQ(tensor.strides[3], 1);
  EXPECT_EQ(tensor.strides[2], 5);
  EXPECT_EQ(tensor.strides[1], 5);
  EXPECT_EQ(tensor.strides[0], 15);
  EXPECT_EQ(tilewise_contiguous(&data, TILEWISE_FP16, 5, shape).rank, 0);
  EXPECT_EQ(tilewise_contiguous(&data, TILEWISE_FP16, 0, shape).rank, 0);
  EXPECT_EQ(tilewise_contiguous(&data, TILEWISE_FP16, 2, nullptr).rank, 0);
}

// A shape whose strides overflow gives a tensor that validation refuses.
TEST(CApi, ContiguousOverflowIsRefused) {
  Sample sample;
  const std::int64_t shape[] = {std::int64_t{1} << 40, std::int64_t{1} << 40, 4, kD};
  sample.request.q = tilewise_contiguous(sample.request.q.data, TILEWISE_FP32, 4, shape);
  EXPECT_EQ(tilewise_forward(&sample.request, nullptr), TILEWISE_INVALID_ARGUMENT);
  EXPECT_TRUE(message_has("q: shape")) << tilewise_last_error();
  const std::int64_t larger[] = {2, std::int64_t{1} << 40, std::int64_t{1} << 40, kD};
  const tilewise_tensor tensor = tilewise_contiguous(nullptr, TILEWISE_FP32, 4, larger);
  EXPECT_EQ(tensor.strides[1], kD << 40);
  EXPECT_EQ(tensor.strides[0], INT64_MAX);
}

TEST(CApi, InstructionSetsAreThoseOfTheList) {
  const std::int32_t count = tilewise_cpu_target_count();
  std::int32_t available = 0;
  for (std::int32_t index = 0; index < count; ++index)
    available += tilewise_cpu_target_available(index);
  EXPECT_GE(available, 1);
  for (const std::int32_t index : {-1, INT32_MIN, count, INT32_MAX}) {
    EXPECT_EQ(tilewise_cpu_target_name(index), nullptr) << index;
    EXPECT_EQ(tilewise_cpu_target_available(index), 0) << index;
  }
}

TEST(CApi, NullPointersAreRefused) {
  Sample sample;
  tilewise_plan* plan = nullptr;
  EXPECT_EQ(tilewise_forward(nullptr, nullptr), TILEWISE_INVALID_ARGUMENT);
  EXPECT_TRUE(message_has("problem: is NULL"));
  EXPECT_EQ(tilewise_backward(nullptr, nullptr), TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(tilewise_plan_create(TILEWISE_FORWARD, nullptr, nullptr, &plan),
            TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(tilewise_plan_create(TILEWISE_FORWARD, &sample.request, nullptr, nullptr),
            TILEWISE_INVALID_ARGUMENT);
  EXPECT_TRUE(message_has("plan: is NULL"));
  EXPECT_EQ(tilewise_plan_run(nullptr, &sample.request, nullptr, 0, nullptr),
            TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(tilewise_plan_workspace(nullptr, nullptr, nullptr), TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(tilewise_kernel_supports(TILEWISE_FORWARD, nullptr, &sample.request),
            TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(tilewise_plan_kernel(nullptr), "");
  EXPECT_STREQ(tilewise_plan_reason(nullptr), "");
  tilewise_plan_destroy(nullptr);
  EXPECT_EQ(plan, nullptr);
}

TEST(CApi, UnknownOperationsAreRefused) {
  Sample sample;
  tilewise_plan* plan = nullptr;
  EXPECT_EQ(tilewise_plan_create(2, &sample.request, nullptr, &plan), TILEWISE_INVALID_ARGUMENT);
  EXPECT_TRUE(message_has("operation: is 2, must be 0 (forward) or 1 (backward)"));
  EXPECT_EQ(tilewise_kernel_supports(-1, "flash2", &sample.request), TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(tilewise_kernel_count(7), 0);
  EXPECT_EQ(tilewise_kernel_name(7, 0), nullptr);
}

// A struct of a newer header is accepted if the part that this library does not know is zero.
TEST(CApi, LargerStructsAreAcceptedIfTheRestIsZero) {
  Sample sample;
  std::vector<unsigned char> larger(sizeof(tilewise_problem) + 48, 0);
  const auto forward_with_size = [&](std::size_t size) {
    sample.request.struct_size = size;
    std::memcpy(larger.data(), &sample.request, sizeof(tilewise_problem));
    return tilewise_forward(reinterpret_cast<const tilewise_problem*>(larger.data()), nullptr);
  };
  EXPECT_EQ(forward_with_size(sizeof(tilewise_problem)), TILEWISE_OK);
  EXPECT_EQ(forward_with_size(larger.size()), TILEWISE_OK) << tilewise_last_error();
  for (const std::size_t size : {std::size_t{0}, sizeof(tilewise_problem) - 1, SIZE_MAX}) {
    EXPECT_EQ(forward_with_size(size), TILEWISE_INVALID_ARGUMENT);
    EXPECT_TRUE(message_has("problem: struct_size is")) << tilewise_last_error();
    EXPECT_TRUE(message_has("tilewise_problem_init()"));
  }
  larger.back() = 1;
  EXPECT_EQ(forward_with_size(larger.size()), TILEWISE_UNSUPPORTED);
  EXPECT_TRUE(message_has("which this version (")) << tilewise_last_error();
}

TEST(CApi, OptionsOfAWrongSizeAreRefused) {
  Sample sample;
  tilewise_plan_options options;
  tilewise_plan_options_init(&options);
  options.struct_size = 4;
  tilewise_plan* plan = nullptr;
  EXPECT_EQ(tilewise_plan_create(TILEWISE_FORWARD, &sample.request, &options, &plan),
            TILEWISE_INVALID_ARGUMENT);
  EXPECT_TRUE(message_has("plan_options: struct_size is 4")) << tilewise_last_error();
}

TEST(CApi, TheRegistryCanBeRead) {
  for (const std::int32_t operation : {TILEWISE_FORWARD, TILEWISE_BACKWARD}) {
    const std::int32_t count = tilewise_kernel_count(operation);
    ASSERT_GE(count, 5);
    for (std::int32_t i = 0; i < count; ++i) {
      EXPECT_GT(std::strlen(tilewise_kernel_name(operation, i)), 0u);
      EXPECT_GT(std::strlen(tilewise_kernel_description(operation, i)), 0u);
      for (std::int32_t j = 0; j < i; ++j) {
        EXPECT_STRNE(tilewise_kernel_name(operation, i), tilewise_kernel_name(operation, j));
      }
    }
    EXPECT_STREQ(tilewise_kernel_name(operation, count - 1), "three_pass");
    EXPECT_EQ(tilewise_kernel_name(operation, count), nullptr);
    EXPECT_EQ(tilewise_kernel_name(operation, -1), nullptr);
    EXPECT_EQ(tilewise_kernel_description(operation, count), nullptr);
  }
}

TEST(CApi, AKernelSaysWhyNot) {
  Sample sample;
  EXPECT_EQ(tilewise_kernel_supports(TILEWISE_FORWARD, "three_pass", &sample.request), TILEWISE_OK);
  EXPECT_EQ(tilewise_kernel_supports(TILEWISE_FORWARD, "no_such", &sample.request),
            TILEWISE_INVALID_ARGUMENT);
  EXPECT_TRUE(message_has("no_such"));
}

}  // namespace
}  // namespace tilewise::tests
