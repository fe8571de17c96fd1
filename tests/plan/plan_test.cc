// Which kernel a plan chooses and why, what it requires of a workspace, and what a run refuses.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "problem/sample.h"
#include "registry/support.h"

namespace tilewise::tests {
namespace {

class PlanOwner {
 public:
  tilewise_status create(std::int32_t operation, const tilewise_problem& request,
                         const tilewise_plan_options* options = nullptr) {
    return tilewise_plan_create(operation, &request, options, &plan_);
  }
  ~PlanOwner() { tilewise_plan_destroy(plan_); }
  tilewise_plan* get() const { return plan_; }
  std::size_t bytes() const {
    std::size_t bytes = 0;
    EXPECT_EQ(tilewise_plan_workspace(plan_, &bytes, nullptr), TILEWISE_OK);
    return bytes;
  }

 private:
  tilewise_plan* plan_ = nullptr;
};

tilewise_plan_options options_for(const char* kernel, const char* target = nullptr) {
  tilewise_plan_options options;
  tilewise_plan_options_init(&options);
  options.kernel = kernel;
  options.cpu_target = target;
  return options;
}

// Sets an environment variable for one scope. The tests of a program run one after another.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    const char* const old = std::getenv(name);
    had_ = old != nullptr;
    if (had_) old_ = old;
    setenv(name, value, 1);
  }
  ~Environment() { had_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  bool had_;
  std::string old_;
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Plan, ChoosesTheFirstThatSupportsAndSaysWhy) {
  const Environment no_target("TILEWISE_CPU_TARGET", "");
  const Environment no_kernel("TILEWISE_KERNEL", "");
  Sample sample;
  for (const Operation operation : kOperations) {
    PlanOwner plan;
    ASSERT_EQ(plan.create(static_cast<std::int32_t>(operation), sample.request), TILEWISE_OK);
    EXPECT_STREQ(tilewise_plan_kernel(plan.get()), host_kernels(operation).front()->name);
    EXPECT_TRUE(contains(tilewise_plan_reason(plan.get()), "first of the registry"));
    EXPECT_TRUE(contains(tilewise_plan_reason(plan.get()), tilewise_plan_kernel(plan.get())));
    EXPECT_STREQ(tilewise_last_error(), "");
  }
}

TEST(Plan, EveryKernelCanBeForced) {
  Sample sample;
  for (const Operation operation : kOperations) {
    const std::int32_t raw = static_cast<std::int32_t>(operation);
    for (const Kernel* kernel : host_kernels(operation)) {
      const tilewise_plan_options options = options_for(kernel->name);
      PlanOwner by_option;
      ASSERT_EQ(by_option.create(raw, sample.request, &options), TILEWISE_OK);
      EXPECT_STREQ(tilewise_plan_kernel(by_option.get()), kernel->name);
      EXPECT_TRUE(contains(tilewise_plan_reason(by_option.get()), "forced by name"));
      const Environment forced("TILEWISE_KERNEL", kernel->name);
      PlanOwner by_environment;
      ASSERT_EQ(by_environment.create(raw, sample.request), TILEWISE_OK);
      EXPECT_STREQ(tilewise_plan_kernel(by_environment.get()), kernel->name);
      EXPECT_EQ(tilewise_kernel_supports(raw, kernel->name, &sample.request), TILEWISE_OK);
    }
  }
}

TEST(Plan, TheOptionOverridesTheEnvironment) {
  const Environment forced("TILEWISE_KERNEL", "flash1");
  const tilewise_plan_options options = options_for("three_pass");
  Sample sample;
  PlanOwner plan;
  ASSERT_EQ(plan.create(TILEWISE_FORWARD, sample.request, &options), TILEWISE_OK);
  EXPECT_STREQ(tilewise_plan_kernel(plan.get()), "three_pass");
}

TEST(Plan, AnUnknownKernelIsNamedWithThoseThatExist) {
  Sample sample;
  const tilewise_plan_options options = options_for("flash9");
  PlanOwner plan;
  EXPECT_EQ(plan.create(TILEWISE_FORWARD, sample.request, &options), TILEWISE_INVALID_ARGUMENT);
  const std::string message = tilewise_last_error();
  EXPECT_TRUE(contains(message, "kernel: is \"flash9\"")) << message;
  for (const Kernel* kernel : plan::kernels(Operation::kForward)) {
    EXPECT_TRUE(contains(message, kernel->name)) << message;
  }
  EXPECT_EQ(plan.get(), nullptr);
}

TEST(Plan, EveryCpuTargetCanBeForced) {
  const Environment none("TILEWISE_CPU_TARGET", "");
  Sample sample;
  int available = 0;
  for (std::int32_t i = 0; i < tilewise_cpu_target_count(); ++i) {
    const std::string target = tilewise_cpu_target_name(i);
    const tilewise_plan_options options = options_for(nullptr, target.c_str());
    PlanOwner plan;
    const tilewise_status status = plan.create(TILEWISE_FORWARD, sample.request, &options);
    if (tilewise_cpu_target_available(i) == 0) {
      EXPECT_EQ(status, TILEWISE_UNSUPPORTED);
      EXPECT_TRUE(contains(tilewise_last_error(), "cpu_target: is \"" + target + "\""));
      continue;
    }
    ++available;
    ASSERT_EQ(status, TILEWISE_OK) << tilewise_last_error();
    // Kernels of bf16 products do not support the sample, which is fp32.
    const bool is_bf16 = target == "amx" || target == "avx512_bf16";
    const std::string kernel = is_bf16 ? "cpu_avx512" : "cpu_" + target;
    EXPECT_EQ(tilewise_plan_kernel(plan.get()), kernel);
    const Environment forced("TILEWISE_CPU_TARGET", target.c_str());
    PlanOwner by_environment;
    ASSERT_EQ(by_environment.create(TILEWISE_FORWARD, sample.request), TILEWISE_OK);
    EXPECT_EQ(tilewise_plan_kernel(by_environment.get()), kernel);
    for (std::int32_t j = 0; j < tilewise_cpu_target_count(); ++j) {
      const std::string other = "cpu_" + std::string(tilewise_cpu_target_name(j));
      if (j == i || other == kernel) continue;
      const tilewise_plan_options named = options_for(other.c_str());
      PlanOwner refused;
      EXPECT_EQ(refused.create(TILEWISE_FORWARD, sample.request, &named), TILEWISE_UNSUPPORTED)
          << other << " where " << target << " is forced";
    }
  }
  EXPECT_GE(available, 1);
  EXPECT_EQ(tilewise_cpu_target_name(-1), nullptr);
  EXPECT_EQ(tilewise_cpu_target_name(tilewise_cpu_target_count()), nullptr);
  EXPECT_EQ(tilewise_cpu_target_available(99), 0);
}

// This is a rule of the shape: for packed sequences it would depend on the lengths of their
// neighbours.
TEST(Plan, FewRowsOfFp16LeaveTheMatrixUnitInTheBackwardPass) {
  if (!machine_has("amx")) GTEST_SKIP() << "this machine has no AMX";
  const Environment unforced("TILEWISE_CPU_TARGET", "");
  const auto kernel_of = [](Case c) {
    Instance instance(c);
    give_forward_results(instance);
    instance.prepare(c.operation);
    PlanOwner plan;
    EXPECT_EQ(plan.create(static_cast<std::int32_t>(c.operation), instance.request()), TILEWISE_OK)
        << tilewise_last_error();
    return std::string(tilewise_plan_kernel(plan.get()));
  };
  const auto sized = [](Operation operation, std::int64_t queries, std::int64_t keys) {
    return make_case(operation, TILEWISE_FP16, {1, queries, keys, 1, 1, 16});
  };
  EXPECT_EQ(kernel_of(sized(Operation::kBackward, 64, 64)), "cpu_amx");
  EXPECT_EQ(kernel_of(sized(Operation::kBackward, 63, 64)), "cpu_avx512");
  EXPECT_EQ(kernel_of(sized(Operation::kBackward, 64, 63)), "cpu_avx512");
  EXPECT_EQ(kernel_of(sized(Operation::kForward, 63, 63)), "cpu_amx");
  Case packed = sized(Operation::kBackward, 0, 0);
  packed.q_packed = packed.k_packed = true;
  packed.q_lengths = packed.k_lengths = {20};
  EXPECT_EQ(kernel_of(packed), "cpu_amx");
}

TEST(Plan, AnUnknownTargetIsAnError) {
  Sample sample;
  const tilewise_plan_options options = options_for(nullptr, "sse9");
  PlanOwner plan;
  EXPECT_EQ(plan.create(TILEWISE_FORWARD, sample.request, &options), TILEWISE_INVALID_ARGUMENT);
  EXPECT_TRUE(contains(tilewise_last_error(), "cpu_target: is \"sse9\", this machine has:"))
      << tilewise_last_error();
}

TEST(Plan, AKernelOfAnotherTargetRefuses) {
  Sample sample;
  if (tilewise_cpu_target_count() < 2) return;
  const std::int32_t last = tilewise_cpu_target_count() - 1;
  // The first target would not do: a kernel of a matrix unit refuses the sample's fp32 before that.
  const std::string other = std::string("cpu_") + tilewise_cpu_target_name(last - 1);
  const tilewise_plan_options options = options_for(other.c_str(), tilewise_cpu_target_name(last));
  PlanOwner plan;
  EXPECT_EQ(plan.create(TILEWISE_FORWARD, sample.request, &options), TILEWISE_UNSUPPORTED);
  EXPECT_TRUE(contains(tilewise_last_error(), tilewise_cpu_target_name(last)))
      << tilewise_last_error();
}

TEST(Plan, AMaxConcurrencyBelowZeroIsRefused) {
  Sample sample;
  tilewise_plan_options options = options_for(nullptr);
  options.max_concurrency = -3;
  PlanOwner plan;
  EXPECT_EQ(plan.create(TILEWISE_FORWARD, sample.request, &options), TILEWISE_INVALID_ARGUMENT);
  EXPECT_TRUE(contains(tilewise_last_error(), "max_concurrency: is -3, must be >= 0"))
      << tilewise_last_error();
}

// A workspace that is too small by a byte, missing or misaligned is refused, and nothing is
// written.
TEST(Plan, AWorkspaceTooSmallMissingOrMisalignedIsRefused) {
  for (const Kernel* kernel : host_kernels(Operation::kForward)) {
    Sample sample;
    const tilewise_plan_options options = options_for(kernel->name);
    PlanOwner plan;
    ASSERT_EQ(plan.create(TILEWISE_FORWARD, sample.request, &options), TILEWISE_OK);
    const std::size_t bytes = plan.bytes();
    if (bytes == 0) continue;
    const verify::Memory memory(bytes + 64);
    const std::string before = sample.memory();
    const auto run = [&](void* workspace, std::size_t size) {
      return tilewise_plan_run(plan.get(), &sample.request, workspace, size, nullptr);
    };
    EXPECT_EQ(run(memory.data(), bytes - 1), TILEWISE_INVALID_ARGUMENT);
    EXPECT_TRUE(contains(tilewise_last_error(), "workspace: " + std::to_string(bytes - 1)))
        << tilewise_last_error();
    EXPECT_TRUE(contains(tilewise_last_error(), "needs " + std::to_string(bytes)));
    EXPECT_EQ(run(memory.data() + 8, bytes), TILEWISE_INVALID_ARGUMENT);
    EXPECT_TRUE(contains(tilewise_last_error(), "multiple of 64")) << tilewise_last_error();
    EXPECT_EQ(run(nullptr, bytes), TILEWISE_INVALID_ARGUMENT);
    EXPECT_EQ(sample.memory(), before);
    EXPECT_EQ(run(memory.data(), bytes), TILEWISE_OK) << tilewise_last_error();
    EXPECT_NE(sample.memory(), before);
  }
}

TEST(Plan, InvalidExecutorsAreRefused) {
  Sample sample;
  tilewise_executor executor;
  tilewise_executor_init(&executor);
  executor.max_concurrency = 0;
  EXPECT_EQ(tilewise_forward(&sample.request, &executor), TILEWISE_INVALID_ARGUMENT);
  EXPECT_TRUE(contains(tilewise_last_error(), "executor: max_concurrency is 0, must be >= 1"));
  tilewise_executor_init(&executor);
  executor.parallel_for = nullptr;
  EXPECT_EQ(tilewise_forward(&sample.request, &executor), TILEWISE_INVALID_ARGUMENT);
  EXPECT_TRUE(contains(tilewise_last_error(), "executor: parallel_for is NULL"));
  tilewise_executor_init(&executor);
  executor.struct_size = 8;
  EXPECT_EQ(tilewise_forward(&sample.request, &executor), TILEWISE_INVALID_ARGUMENT);
  EXPECT_TRUE(contains(tilewise_last_error(), "executor: struct_size is 8"));
}

// A workspace beyond 2^63 bytes is reported as missing memory and does not wrap.
TEST(Plan, EnormousWorkspacesAreRefused) {
  Sample sample;
  tilewise_problem& p = sample.request;
  for (const auto member : {&tilewise_problem::mask, &tilewise_problem::bias}) {
    (p.*member).rank = 0;
  }
  p.lse.rank = 0;
  const std::int64_t rows = std::int64_t{1} << 40;
  for (const auto member :
       {&tilewise_problem::q, &tilewise_problem::out, &tilewise_problem::k, &tilewise_problem::v}) {
    (p.*member).shape[1] = rows;
    (p.*member).strides[0] = (p.*member).strides[1] = 0;
  }
  const tilewise_plan_options options = options_for("three_pass");
  PlanOwner plan;
  EXPECT_EQ(plan.create(TILEWISE_FORWARD, p, &options), TILEWISE_NO_MEMORY);
  EXPECT_TRUE(contains(tilewise_last_error(), "2^63 bytes")) << tilewise_last_error();
}

// The workspace of forward does not depend on Sq and Sk on the CPU kernels; that of backward is at
// most linear in them.
TEST(Plan, WorkspaceDoesNotGrowWithTheScores) {
  for (const Operation operation : kOperations) {
    for (const Kernel* kernel : runnable_kernels(operation)) {
      if (std::string(kernel->name).rfind("cpu_", 0) != 0) continue;
      std::vector<std::int64_t> bytes;
      for (const std::int64_t length : {4096, 8192, 16384}) {
        Case c = make_case(operation, TILEWISE_BF16, {1, 1, 1, 4, 4, 64});
        Instance instance(c);
        tilewise_problem request = instance.request();
        for (const auto member :
             {&tilewise_problem::q, &tilewise_problem::k, &tilewise_problem::v,
              &tilewise_problem::out, &tilewise_problem::dout, &tilewise_problem::dq,
              &tilewise_problem::dk, &tilewise_problem::dv}) {
          if ((request.*member).rank != 0) (request.*member).shape[1] = length;
        }
        request.lse.shape[2] = length;
        plan::Options options;
        options.kernel = kernel->name;
        options.max_concurrency = 4;
        plan::Plan plan;
        ASSERT_EQ(plan::make_plan(operation, request, options, &plan), TILEWISE_OK)
            << problem::message();
        bytes.push_back(plan.workspace_bytes);
      }
      if (operation == Operation::kForward) {
        EXPECT_EQ(bytes[1], bytes[0]) << kernel->name;
        EXPECT_EQ(bytes[2], bytes[0]) << kernel->name;
      } else {
        EXPECT_LE(bytes[2] - bytes[1], 2 * (bytes[1] - bytes[0]) + 65536) << kernel->name;
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
