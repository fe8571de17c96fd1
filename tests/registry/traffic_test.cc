// Every kernel counts what its closed form predicts, byte for byte, on dense problems without mask
// and bias. Where there is no closed form, the prediction is NaN.
#include <array>
#include <cmath>
#include <string>

#include "cuda/host/runtime.h"
#include "registry/support.h"
#include "verify/device_copy.h"
#include "verify/tensor.h"

namespace tilewise::tests {
namespace {

struct Measured {
  double predicted = 0;
  double counted = 0;
  std::int64_t read = 0;
};

Measured measure(const Kernel& kernel, Instance& instance, std::int32_t concurrency) {
  const Operation operation = instance.description().operation;
  plan::Options options;
  options.kernel = kernel.name;
  options.max_concurrency = concurrency;
  if (kernel.device == TILEWISE_CUDA) {
    const verify::CopiedRun run = verify::run_on_device(operation, instance.request(), options);
    EXPECT_EQ(run.status, TILEWISE_OK) << problem::message();
    return {run.predicted_bytes,
            static_cast<double>(run.traffic.read_bytes + run.traffic.written_bytes),
            run.traffic.read_bytes};
  }
  plan::Plan plan;
  EXPECT_EQ(plan::make_plan(operation, instance.request(), options, &plan), TILEWISE_OK)
      << problem::message();
  const verify::Memory workspace(static_cast<std::size_t>(plan.workspace_bytes));
  problem::Traffic traffic;
  plan::RunOptions run;
  run.workspace = workspace.data();
  run.workspace_bytes = static_cast<std::size_t>(plan.workspace_bytes);
  run.traffic = &traffic;
  EXPECT_EQ(plan::run_plan(plan, instance.request(), run), TILEWISE_OK) << problem::message();
  return {kernel.predicted_traffic(plan.problem, plan.concurrency, 0),
          static_cast<double>(traffic.read_bytes + traffic.written_bytes), traffic.read_bytes};
}

// B, Sq, Sk, H, Hk, D
const std::vector<std::int64_t> kSizes[] = {
    {1, 300, 300, 2, 2, 24}, {2, 137, 411, 4, 2, 40}, {1, 411, 137, 3, 1, 16},
    {1, 17, 1100, 2, 1, 8},  {2, 16, 1300, 6, 2, 24}, {1, 1, 700, 8, 2, 64},
    {1, 3, 200, 2, 2, 33},   {3, 0, 50, 2, 1, 16},    {2, 40, 0, 2, 1, 16},
    {1, 1, 1, 1, 1, 1},      {1, 900, 900, 1, 1, 8},  {1, 50, 4200, 2, 1, 16},
};

Case masked(Case c, int mask) {
  c.causal = mask == 1;
  if (mask == 2) c.window_left = 70, c.window_right = 9;
  if (mask == 3) c.causal = true, c.window_left = 200, c.alignment = TILEWISE_TOP_LEFT;
  return c;
}

// The reference of a GPU counts nothing. The backward kernels of a GPU have a test of their own.
std::vector<const Kernel*> counting_kernels(Operation operation, std::int32_t dtype) {
  std::vector<const Kernel*> kernels = runnable_kernels(operation, dtype);
  std::erase_if(kernels, [&](const Kernel* kernel) {
    return kernel->device != TILEWISE_CPU &&
           (operation == Operation::kBackward || std::string(kernel->name) == "cuda_reference");
  });
  return kernels;
}

TEST(Traffic, EveryKernelCountsWhatItPredicts) {
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP64}) {
      const std::vector<const Kernel*> counting = counting_kernels(operation, dtype);
      if (counting.empty()) continue;
      for (const auto& sizes : kSizes) {
        for (int mask = 0; mask < 4; ++mask) {
          Case c = masked(make_case(operation, dtype, sizes), mask);
          c.value_dim = c.head_dim + (mask == 2 ? 5 : 0);
          Instance instance(c);
          if (operation == Operation::kBackward) give_forward_results(instance);
          for (const Kernel* kernel : counting) {
            SCOPED_TRACE(kernel->name + (": " + verify::describe(c)));
            const Measured measured = measure(*kernel, instance, mask % 2 == 0 ? 1 : 3);
            EXPECT_EQ(measured.counted, measured.predicted);
          }
        }
      }
    }
  }
}

// The partial kernels of a device that move more bytes than FlashAttention-2.
TEST(Traffic, LadderOfADeviceCountsWhatItPredicts) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no device";
  for (const auto& sizes : kSizes) {
    for (int mask = 0; mask < 4; ++mask) {
      Case c = masked(make_case(Operation::kForward, TILEWISE_BF16, sizes), mask);
      c.value_dim = c.head_dim + (mask == 2 ? 5 : 0);
      c.output_dtype = mask == 1 ? TILEWISE_FP32 : 0;
      Instance instance(c);
      for (const char* name : {"cuda_flash1", "cuda_standard"}) {
        SCOPED_TRACE(name + (": " + verify::describe(c)));
        const Kernel* const kernel = plan::find_kernel(Operation::kForward, name);
        ASSERT_NE(kernel, nullptr);
        const Measured measured = measure(*kernel, instance, 1);
        EXPECT_EQ(measured.counted, measured.predicted);
      }
    }
  }
}

// The backward kernels of a device: sizes with several tiles of queries and of keys, and without
// any, and gradients that are not asked for.
TEST(Traffic, GradientsOfADeviceCountWhatTheyPredict) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no device";
  const std::vector<std::int64_t> some[] = {
      {1, 150, 170, 2, 1, 24}, {2, 3, 140, 4, 2, 33}, {1, 0, 50, 2, 1, 16}, {1, 40, 0, 2, 1, 16}};
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP32}) {
    for (const auto& sizes : some) {
      for (int mask = 0; mask < 3; ++mask) {
        Case c = masked(make_case(Operation::kBackward, dtype, sizes), mask);
        c.value_dim = c.head_dim + (mask == 2 ? 5 : 0);
        c.output_dtype = mask == 1 ? TILEWISE_FP32 : 0;
        c.softcap = mask == 0 ? 5 : 0;
        if (mask == 2) c.gradients = verify::kDQ | verify::kDV;
        Instance instance(c);
        give_forward_results(instance);
        for (const Kernel* kernel : kernels_for(instance)) {
          if (kernel->device == TILEWISE_CPU || std::string(kernel->name) == "cuda_reference")
            continue;
          SCOPED_TRACE(kernel->name + (": " + verify::describe(c)));
          const Measured measured = measure(*kernel, instance, 1);
          EXPECT_EQ(measured.counted, measured.predicted);
        }
      }
    }
  }
}

// Keys of the longest tile, or block of keys, of a CPU kernel.
constexpr std::int64_t kLongestTile = 512;

// Masks that show few of many keys, with the keys that they show.
struct FewKeys {
  std::vector<verify::Slice> slices;
  bool of_heads;
  std::vector<std::array<std::int64_t, 2>> shown;  // of each head
};
std::vector<FewKeys> few_keys(std::int64_t rows, std::int64_t keys) {
  return {
      {{{0, rows, 9000, 9100, 0, -1}}, false, {{9000, 9100}}},
      {{{0, rows, 0, 4, 0, -1}, {0, rows, keys - 90, keys, 1, -1}},
       false,
       {{0, 4}, {keys - 90, keys}}},
      {{{0, 1, 5000, 5020, 0, -1}, {rows - 1, rows, 15000, 15001, 0, -1}, {0, 0, 0, keys, 0, -1}},
       false,
       {{5000, 5020}, {15000, 15001}}},
      {{{0, rows, 700, 710, 0, 0}, {0, rows, 12000, 12100, 0, 1}, {0, rows, 3, 5, 0, -1}},
       true,
       {{3, 5}, {700, 710}, {12000, 12100}}},
      {{{0, rows, keys, keys, 0, -1}}, false, {}}};
}

// What is read grows with the keys that some row sees, not with the length of the cache: neither
// the keys before the first one, nor those between two slices, nor those of other heads.
TEST(Traffic, KeysThatNoSliceShowsAreNotRead) {
  constexpr std::int64_t kKeys = 20000;
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP64}) {
      for (const std::int64_t rows : {1, 5, 16, 17, 40}) {
        for (const FewKeys& few : few_keys(rows, kKeys)) {
          Case c = make_case(operation, dtype, {1, rows, kKeys, 4, 2, 16});
          c.slices = few.slices;
          c.slice_heads = few.of_heads;
          c.sink = operation == Operation::kForward && rows == 5;
          Instance instance(c);
          if (operation == Operation::kBackward) give_forward_results(instance);
          std::int64_t tiles = 0;  // that the shown keys touch
          for (const auto& [begin, end] : few.shown)
            tiles += (end - 1) / kLongestTile - begin / kLongestTile + 1;
          const std::int64_t row_bytes = 2 * 16 * problem::dtype_size(dtype);  // of K and V
          const bool decoded = operation == Operation::kForward && rows <= 16;
          const std::int64_t longest = decoded ? 32 : kLongestTile;
          const std::int64_t of_keys = 4 * (decoded ? 5 : 1) * tiles * longest * row_bytes;
          // Rows of queries are read, and written as states or sums, for each tile that they see.
          const std::int64_t of_rows = 4 * rows * 16 * 8 * (60 + 40 * tiles);
          const std::int64_t whole = kKeys * 2 * row_bytes;
          for (const Kernel* kernel : host_kernels(operation)) {
            if (!machine_runs(*kernel, dtype) || kernel->is_rung) continue;
            const Measured measured = measure(*kernel, instance, 2);
            EXPECT_LE(measured.read, of_keys + of_rows)
                << kernel->name << ", of " << whole << ": " << verify::describe(c);
          }
        }
      }
    }
  }
}

TEST(Traffic, IsNotPredictedWhereContentsDecide) {
  const std::vector<std::int64_t> sizes = {2, 40, 60, 2, 1, 16};
  for (const Operation operation : kOperations) {
    Case masked_case = make_case(operation, TILEWISE_FP32, sizes);
    masked_case.mask = {true, 2, {true, true, true, true}};
    Case used = make_case(operation, TILEWISE_FP32, sizes);
    used.used = {60, 13};
    for (const Case& c : {masked_case, used}) {
      Instance instance(c);
      if (operation == Operation::kBackward) give_forward_results(instance);
      for (const Kernel* kernel : runnable_kernels(operation)) {
        SCOPED_TRACE(kernel->name + (": " + verify::describe(c)));
        EXPECT_TRUE(std::isnan(measure(*kernel, instance, 2).predicted));
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
