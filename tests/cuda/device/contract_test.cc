// What holds for all kernels on a device: masked values have no effect, inputs are not
// written, results are reproducible.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/device/support.h"
#include "registry/support.h"

namespace tilewise::tests {
namespace {

// NaN and infinity in values after the diagonal, in the same tile of keys as visible values.
void expect_masked_values_never_affect_a_result(std::int64_t dim) {
  Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, 200, 200, 2, 1, dim});
  c.causal = true;
  Instance clean(c);
  Instance poisoned(c);
  const std::vector<double> values = verify::numbers_of(clean.request().v);
  set_elements(poisoned.request().v, [&](std::int64_t i) {
    const RowIndex at = row_index(poisoned.request().v, TILEWISE_BSHD, i);
    return at.row >= 150 ? (i % 2 == 0 ? std::nan("") : HUGE_VAL)
                         : values[static_cast<std::size_t>(i)];
  });
  for (const char* kernel :
       {"cuda_sm90", "cuda_sm80", "cuda_flash1", "cuda_standard", "cuda_reference"}) {
    if (run_kernel(kernel, Operation::kForward, clean.request()) == TILEWISE_UNSUPPORTED) continue;
    ASSERT_EQ(run_kernel(kernel, Operation::kForward, poisoned.request()), TILEWISE_OK);
    const std::vector<double> expected = verify::numbers_of(clean.request().out);
    const std::vector<double> got = verify::numbers_of(poisoned.request().out);
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

TEST(Device, MaskedValuesNeverAffectAResult) {
  if (!has_device()) GTEST_SKIP() << "no device";
  for (const std::int64_t dim : {64, 256}) expect_masked_values_never_affect_a_result(dim);
}

// Only the reference counts the rows and keys of the whole for dropout, and takes windows as long
// as any sequence.
TEST(Device, PartsWithDropoutOrHugeWindowsAreLeftToTheReference) {
  if (!has_device()) GTEST_SKIP() << "no device";
  for (const Operation operation : kOperations) {
    Case c = make_case(operation, TILEWISE_BF16, {2, 30, 50, 2, 1, 64});
    c.output_dtype = TILEWISE_FP32;
    const Instance instance(c);
    const verify::DeviceCopy copy(operation, instance.request());
    tilewise_problem part = copy.request();
    const std::int64_t shape[] = {2, 4};
    part.parts = tilewise_contiguous(nullptr, TILEWISE_INT64, 2, shape);
    part.parts.device = TILEWISE_CUDA;
    tilewise_problem dropping = part;
    dropping.dropout_p = 0.5;
    tilewise_problem wide = part;
    wide.window_left = INT64_MAX;
    for (const Kernel* kernel : plan::kernels(operation)) {
      if (kernel->device != TILEWISE_CUDA) continue;
      plan::Options options;
      options.kernel = kernel->name;
      plan::Plan plan;
      const bool takes_all = std::string(kernel->name) == "cuda_reference";
      const auto expect_refused = [&](const tilewise_problem& request, const char* start) {
        const problem::Status status = plan::make_plan(operation, request, options, &plan);
        EXPECT_EQ(status, takes_all ? TILEWISE_OK : TILEWISE_UNSUPPORTED) << kernel->name;
        if (takes_all) return;
        EXPECT_EQ(std::string(problem::message()).rfind(start, 0), 0u)
            << kernel->name << ": " << problem::message();
      };
      expect_refused(dropping, "dropout_p: given with parts");
      expect_refused(wide, "window: is 9223372036854775807 with parts");
    }
  }
}

// A memory-mapped file is such memory.
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

TEST(Device, ForwardIsBitwiseReproducible) {
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

// Where it is asked for. Every kernel of the device that supports the case is tested.
TEST(Device, BackwardIsBitwiseReproducible) {
  if (!has_device()) GTEST_SKIP() << "no device";
  constexpr int kRuns = 250;
  for (const char* const mask : {"none", "causal", "slices", "boolean"}) {
    SCOPED_TRACE(mask);
    Case c = make_case(Operation::kBackward, TILEWISE_BF16, {2, 300, 450, 4, 2, 128});
    c.causal = mask == std::string("causal");
    if (mask == std::string("slices"))
      c.slices = {{0, 250, 0, 400, 1, -1}, {90, 300, 50, 450, 2, -1}};
    if (mask == std::string("boolean")) c.mask = {true, 4, {false, false, true, true}};
    c.deterministic = true;
    Instance instance(c);
    give_forward_results(instance);
    for (const Kernel* kernel : plan::kernels(Operation::kBackward)) {
      const tilewise_problem& request = instance.request();
      if (kernel->device != TILEWISE_CUDA) continue;
      if (run_kernel(kernel->name, c.operation, request) == TILEWISE_UNSUPPORTED) continue;
      const std::vector<std::uint64_t> bits = output_bits(c.operation, request);
      for (int run = 0; run < kRuns; ++run) {
        RunSetup setup;
        setup.fill = run;
        ASSERT_EQ(run_kernel(kernel->name, c.operation, request, setup), TILEWISE_OK);
        ASSERT_EQ(output_bits(c.operation, request), bits) << kernel->name << " run " << run;
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
