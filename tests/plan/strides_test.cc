// A plan serves tensors of any strides: its workspace is large enough for all of them.
#include <algorithm>

#include "registry/support.h"

namespace tilewise::tests {
namespace {

using verify::Storage;

// Runs the plans that `planned` was made for on `instance`, each in a workspace before a guard.
void expect_enough_workspace(const Instance& planned, const Instance& instance) {
  constexpr std::size_t kGuard = 1 << 16;
  const Operation operation = instance.description().operation;
  for (const Kernel* kernel : host_kernels(operation)) {
    plan::Options options;
    options.kernel = kernel->name;
    plan::Plan plan;
    if (plan::make_plan(operation, planned.request(), options, &plan) != TILEWISE_OK) continue;
    const auto bytes = static_cast<std::size_t>(plan.workspace_bytes);
    const verify::Memory memory(bytes + kGuard);
    plan::RunOptions run;
    run.workspace = memory.data();
    run.workspace_bytes = bytes;
    ASSERT_EQ(plan::run_plan(plan, instance.request(), run), TILEWISE_OK) << problem::message();
    const std::byte* const guard = memory.data() + bytes;
    EXPECT_TRUE(
        std::all_of(guard, guard + kGuard, [](std::byte b) { return b == std::byte{0xFF}; }))
        << kernel->name << ": " << describe(instance.description());
  }
}

// Plans for one arrangement of the tensors and runs on another. Neighbouring heads of a token are
// decoded together, those that are far apart one by one.
TEST(PlanStrides, AWorkspaceServesAnyArrangement) {
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16}) {
      for (const std::int64_t q_len : {3, 40}) {  // decoded, and in blocks
        Case c = make_case(operation, dtype, {2, q_len, 150, 8, 4, 8});
        for (const Storage planned : {Storage::kContiguous, Storage::kTransposed}) {
          c.storage = planned;
          const Instance of_plan(c);
          for (const Storage storage :
               {Storage::kContiguous, Storage::kTransposed, Storage::kPadded}) {
            c.storage = storage;
            Instance instance(c);
            give_forward_results(instance);
            expect_enough_workspace(of_plan, instance);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
