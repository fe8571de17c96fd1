// Sizes for which only a GPU has memory: more heads, sequences and keys than 16 bits count, and
// more elements than 32 bits number. They are too large for the emulation.
#include <gtest/gtest.h>
#include <tilewise/tilewise.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cuda/device/support.h"
#include "cuda/host/runtime.h"
#include "registry/support.h"
#include "verify/device_copy.h"

namespace tilewise::tests {
namespace {

using verify::DeviceMemory;

constexpr const char* kKernels[] = {"cuda_sm90", "cuda_sm80"};

bool serves(const std::string& kernel) {
  return kernel == "cuda_sm90" ? has_hopper() : has_device();
}

TEST(Large, KernelsCountBeyond16Bits) {
  if (!has_device()) GTEST_SKIP() << "no device";
  TILEWISE_TRACE_SEED();
  std::vector<Case> cases;
  for (const std::vector<std::int64_t>& sizes :
       std::vector<std::vector<std::int64_t>>{{70000, 1, 2, 1, 1, 8},
                                              {1, 1, 2, 70000, 35000, 8},
                                              {1, 3, 70000, 1, 1, 64},
                                              {1, 70000, 3, 1, 1, 128}})
    cases.push_back(make_case(Operation::kForward, TILEWISE_BF16, sizes));
  cases[2].causal = cases[3].causal = true;
  Case packed = make_case(Operation::kForward, TILEWISE_FP16, {70000, 0, 0, 1, 1, 16});
  packed.q_packed = packed.k_packed = true;
  packed.q_lengths.assign(70000, 1);
  packed.k_lengths.assign(70000, 2);
  packed.q_lengths[65536] = 0;
  packed.k_lengths[66000] = 130;
  cases.push_back(packed);
  for (const Case& c : cases) {
    verify::Judge judge(c);
    for (const char* kernel : kKernels) {
      if (!serves(kernel)) continue;
      const verify::Verdict verdict = judge.judge(kernel);
      EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << verdict.text;
    }
  }
}

constexpr std::int64_t kHeads = 16;
constexpr std::int64_t kDim = 128;
// The contents repeat after so many rows. 2^31 and 2^32 elements are no multiple of them: an
// address that loses its upper bits reads other numbers.
constexpr std::int64_t kPeriod = 1000;
constexpr std::int64_t kPeriods = 1050;
static_assert(kPeriod * kPeriods * kHeads * kDim > std::int64_t{1} << 31);

// A tensor (1, periods * kPeriod, kHeads, kDim) of the device, in bf16.
class Repeated {
 public:
  explicit Repeated(std::int64_t periods) : periods_(periods), memory_(0, periods * kPeriodBytes) {}

  // Fills the tensor with repetitions of a period.
  void set(const tilewise_tensor& period) {
    copy(memory_.data(), period.data, kPeriodBytes);
    for (std::int64_t done = 1; done < periods_;) {
      const std::int64_t more = std::min(done, periods_ - done);
      copy(memory_.data() + done * kPeriodBytes, memory_.data(), more * kPeriodBytes);
      done += more;
    }
  }
  void poison() {
    EXPECT_EQ(cuda::fill(0, memory_.data(), 0xFF, periods_ * kPeriodBytes, nullptr), TILEWISE_OK);
  }
  std::vector<double> values_of(std::int64_t period) const {
    verify::TensorOwner owner;
    const std::int64_t shape[] = {1, kPeriod, kHeads, kDim};
    const tilewise_tensor tensor = owner.make(TILEWISE_BF16, 4, shape);
    copy(tensor.data, memory_.data() + period * kPeriodBytes, kPeriodBytes);
    return verify::numbers_of(tensor);
  }
  tilewise_tensor tensor() const {
    tilewise_tensor t = {};
    t.data = memory_.data();
    t.dtype = TILEWISE_BF16;
    t.rank = 4;
    t.device = TILEWISE_CUDA;
    const std::int64_t shape[] = {1, periods_ * kPeriod, kHeads, kDim};
    std::int64_t stride = 1;
    for (int d = 3; d >= 0; --d) {
      t.shape[d] = shape[d];
      t.strides[d] = stride;
      stride *= shape[d];
    }
    return t;
  }

 private:
  static constexpr std::int64_t kPeriodBytes = 2 * kPeriod * kHeads * kDim;

  static void copy(void* to, const void* from, std::int64_t bytes) {
    EXPECT_EQ(cuda::copy(0, to, from, bytes, nullptr), TILEWISE_OK) << problem::message();
  }

  std::int64_t periods_;
  DeviceMemory memory_;
};

struct Inputs {
  Inputs(std::int64_t q_periods, std::int64_t k_periods)
      : q(q_periods), k(k_periods), v(k_periods), out(q_periods) {}

  // Causal with a window of `window` keys; 0: no mask.
  void run(const char* kernel, std::int64_t window) {
    out.poison();
    tilewise_problem request;
    tilewise_problem_init(&request);
    request.q = q.tensor();
    request.k = k.tensor();
    request.v = v.tensor();
    request.out = out.tensor();
    request.causal = window > 0 ? 1 : 0;
    request.window_left = window > 0 ? window - 1 : -1;
    EXPECT_EQ(run_there(kernel, request), TILEWISE_OK) << problem::message();
  }

  Repeated q, k, v, out;

 private:
  static problem::Status run_there(const char* kernel, const tilewise_problem& request) {
    plan::Options options;
    options.kernel = kernel;
    plan::Plan plan;
    const problem::Status planned = plan::make_plan(Operation::kForward, request, options, &plan);
    if (planned != TILEWISE_OK) return planned;
    const DeviceMemory workspace(0, plan.workspace_bytes + 1);
    plan::RunOptions run;
    run.workspace = workspace.data();
    run.workspace_bytes = static_cast<std::size_t>(plan.workspace_bytes);
    const problem::Status status = plan::run_plan(plan, request, run);
    return status != TILEWISE_OK ? status : cuda::synchronise(0, nullptr);
  }
};

// The number of elements that differ by more than the rounding of probs and results in bf16.
std::int64_t differing(const std::vector<double>& a, const std::vector<double>& b) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    count += std::abs(a[i] - b[i]) <= 0.01 + 0.01 * std::abs(b[i]) ? 0 : 1;
  return count;
}

// Rows at the end equal rows of the third period: with a window they see keys and values of the
// same contents; without a mask there are few keys.
TEST(Large, ElementsAreAddressedBeyond32Bits) {
  if (!has_device()) GTEST_SKIP() << "no device";
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  verify::TensorOwner owner;
  const std::int64_t shape[] = {1, kPeriod, kHeads, kDim};
  std::vector<tilewise_tensor> periods;
  for (int i = 0; i < 3; ++i) {
    periods.push_back(owner.make(TILEWISE_BF16, 4, shape));
    set_elements(periods.back(), [&](std::int64_t) { return 4 * random.uniform() - 2; });
  }
  for (const std::int64_t window : {std::int64_t{100}, std::int64_t{1000}, std::int64_t{0}}) {
    Inputs large(kPeriods, window > 0 ? kPeriods : 1);
    Inputs small(3, window > 0 ? 3 : 1);
    for (Inputs* inputs : {&large, &small}) {
      inputs->q.set(periods[0]);
      inputs->k.set(periods[1]);
      inputs->v.set(periods[2]);
    }
    for (const char* kernel : kKernels) {
      if (!serves(kernel)) continue;
      small.run("cuda_reference", window);
      const std::vector<double> expected = small.out.values_of(2);
      small.run(kernel, window);
      EXPECT_EQ(differing(small.out.values_of(2), expected), 0) << kernel << ", " << window;
      large.run(kernel, window);
      for (const std::int64_t period : {std::int64_t{2}, kPeriods / 2, kPeriods - 1})
        EXPECT_EQ(differing(large.out.values_of(period), expected), 0)
            << kernel << ", window " << window << ", period " << period;
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
