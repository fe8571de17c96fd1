// Which steps of the CPU kernels keep rows that are not finite from lanes that do not see them
// (problem::RunContext::contained_steps): none for finite inputs, and for others only those that an
// edge of the mask cuts.
#include <cmath>
#include <limits>
#include <string>

#include "registry/support.h"
#include "verify/tensor.h"

namespace tilewise::tests {
namespace {

std::vector<const Kernel*> cpu_kernels(Operation operation, std::int32_t dtype) {
  std::vector<const Kernel*> kernels;
  for (const Kernel* kernel : runnable_kernels(operation, dtype)) {
    if (std::string(kernel->name).rfind("cpu_", 0) == 0) kernels.push_back(kernel);
  }
  return kernels;
}

// cpu_amx computes whole blocks again (docs/matrix-unit.md).
bool is_amx(const Kernel& kernel) { return std::string(kernel.name) == "cpu_amx"; }

std::int64_t contained_steps(const Kernel& kernel, Instance& instance) {
  plan::Options options;
  options.kernel = kernel.name;
  options.max_concurrency = 1;
  plan::Plan plan;
  EXPECT_EQ(plan::make_plan(instance.description().operation, instance.request(), options, &plan),
            TILEWISE_OK)
      << problem::message();
  const verify::Memory workspace(static_cast<std::size_t>(plan.workspace_bytes));
  std::int64_t steps = 0;
  plan::RunOptions run;
  run.workspace = workspace.data();
  run.workspace_bytes = static_cast<std::size_t>(plan.workspace_bytes);
  run.contained_steps = &steps;
  EXPECT_EQ(plan::run_plan(plan, instance.request(), run), TILEWISE_OK) << problem::message();
  return steps;
}

// The standard deviations of a kind of finite inputs.
struct Sizes {
  const char* name;
  double q, k, v;
};

double largest_of(std::int32_t dtype) {
  if (dtype == TILEWISE_FP64) return std::numeric_limits<double>::max();
  return dtype == TILEWISE_FP16 ? 65504.0 : 0x1.FEp127;
}

void fill_normal(const tilewise_tensor& tensor, double deviation, std::uint64_t seed) {
  Random random(seed);
  const double largest = largest_of(tensor.dtype);
  set_elements(tensor, [&](std::int64_t) {
    return std::fmax(-largest, std::fmin(largest, random.normal() * deviation));
  });
}

TEST(SlowPath, FiniteInputsNeverTakeIt) {
  TILEWISE_TRACE_SEED();
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      const double tiny = dtype == TILEWISE_FP64 ? 1e-310 : dtype == TILEWISE_FP16 ? 1e-6 : 1e-40;
      const Sizes kinds[] = {{"normal", 1, 1, 1},
                             {"large scores", 64, 1, 1},
                             {"denormal V", 1, 1, tiny},
                             {"denormal Q and K", tiny, tiny, 1},
                             {"largest V", 1, 1, largest_of(dtype)}};
      for (const Sizes& kind : kinds) {
        for (const std::int64_t queries : {1, 70, 200}) {
          Case c = make_case(operation, dtype, {1, queries, 200, 2, 1, 24});
          c.causal = true;
          Instance instance(c);
          fill_normal(instance.request().q, kind.q, 1);
          fill_normal(instance.request().k, kind.k, 2);
          fill_normal(instance.request().v, kind.v, 3);
          give_forward_results(instance);
          for (const Kernel* kernel : cpu_kernels(operation, dtype)) {
            const bool sums_of_gradients = operation == Operation::kBackward && kind.v > 1;
            if (is_amx(*kernel) && sums_of_gradients) continue;  // they overflow
            EXPECT_EQ(contained_steps(*kernel, instance), 0)
                << kernel->name << ", " << kind.name << ": " << verify::describe(c);
          }
        }
      }
    }
  }
}

void poison_everything(const tilewise_problem& request, Operation operation) {
  set_elements(request.v, [](std::int64_t) { return std::nan(""); });
  if (operation == Operation::kForward) return;
  set_elements(request.k, [](std::int64_t) { return std::nan(""); });
  set_elements(request.dout, [](std::int64_t) { return std::nan(""); });
}

TEST(SlowPath, TilesThatAreSeenWholeNeverTakeIt) {
  TILEWISE_TRACE_SEED();
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      for (const std::int64_t queries : {1, 96}) {
        Case c = make_case(operation, dtype, {1, queries, 1000, 2, 1, 24});
        Instance instance(c);
        give_forward_results(instance);
        poison_everything(instance.request(), operation);
        for (const Kernel* kernel : cpu_kernels(operation, dtype)) {
          if (is_amx(*kernel)) continue;
          EXPECT_EQ(contained_steps(*kernel, instance), 0)
              << kernel->name << ": " << verify::describe(c);
        }
      }
    }
  }
}

// The edge of a causal mask cuts the last `queries` keys. A step is at least four rows or keys
// wide; a panel of queries meets at most two tiles with an edge, and one of keys one tile of
// queries.
TEST(SlowPath, OnlyTilesThatAnEdgeCutsTakeIt) {
  TILEWISE_TRACE_SEED();
  constexpr std::int64_t kQueries = 96;
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      Case c = make_case(operation, dtype, {1, kQueries, 1000, 2, 1, 24});
      c.causal = true;
      Instance instance(c);
      give_forward_results(instance);
      poison_everything(instance.request(), operation);
      const bool forward = operation == Operation::kForward;
      const std::int64_t most = 2 * (forward ? 2 * kQueries / 4 : kQueries / 4 + 1);
      for (const Kernel* kernel : cpu_kernels(operation, dtype)) {
        const std::int64_t steps = contained_steps(*kernel, instance);
        EXPECT_GT(steps, 0) << kernel->name << ": " << verify::describe(c);
        EXPECT_LE(steps, most) << kernel->name << ": " << verify::describe(c);
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
