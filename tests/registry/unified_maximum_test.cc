// FlashDecoding++: phi, the anchor that all splits of a row share, changes no result, whatever it
// is and whatever the data are, and the counter says how often it did not serve.
#include <cmath>

#include "registry/support.h"

namespace tilewise::tests {
namespace {

constexpr std::int64_t kManySplits = 1300;

Case decode_case(std::int32_t dtype, double phi) {
  Case c = make_case(Operation::kForward, dtype, {2, 3, kManySplits, 4, 2, 40});
  c.phi = {phi};
  return c;
}

// Runs a kernel and returns what it has added to the counter.
std::int64_t fallbacks_of(const char* kernel, Instance& instance) {
  std::int64_t& counter = *static_cast<std::int64_t*>(instance.request().phi_fallbacks.data);
  counter = 1000;
  EXPECT_EQ(run_kernel(kernel, Operation::kForward, instance.request()), TILEWISE_OK)
      << problem::message();
  return counter - 1000;
}

// The kernels that read phi.
std::vector<const Kernel*> unified_kernels(const Instance& instance) {
  std::vector<const Kernel*> kernels;
  for (const Kernel* const kernel : kernels_for(instance)) {
    const std::string name = kernel->name;
    const bool on_gpu = name == "cuda_decode" && instance.description().dtype != TILEWISE_FP32;
    if (name.starts_with("cpu_") || name == "flash_decoding_pp" || on_gpu)
      kernels.push_back(kernel);
  }
  return kernels;
}

// Of those, the ones that round no row by what its neighbours are.
std::vector<const Kernel*> unified_host_kernels(const Instance& instance) {
  std::vector<const Kernel*> kernels = unified_kernels(instance);
  std::erase_if(kernels, [](const Kernel* kernel) { return kernel->device != TILEWISE_CPU; });
  return kernels;
}

TEST(UnifiedMaximum, AnyAnchorKeepsTheAccuracy) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : kDtypes) {
    for (const double phi :
         {0.0, 5.0, -12.0, 45.0, -45.0, 600.0, -600.0, 3e38, -HUGE_VAL, std::nan("")}) {
      Case c = decode_case(dtype, phi);
      c.sink = phi > 0;
      c.causal = phi < 0;
      expect_all_pass(c);
    }
  }
}

TEST(UnifiedMaximum, EveryHeadMayHaveItsOwn) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : kDtypes) {
    Case c = decode_case(dtype, 0);
    c.phi = {0, 20, -300, 7};
    c.alibi = true;
    expect_all_pass(c);
  }
}

// The last split has two keys, which only the last two of 16 queries see. The others must not take
// phi for their maximum when these fall back.
TEST(UnifiedMaximum, RowsThatSeeNoKeyOfASplitKeepTheAccuracy) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : kDtypes) {
    Case c = make_case(Operation::kForward, dtype, {1, 16, 1026, 2, 1, 24});
    c.causal = true;
    c.phi = {600};
    expect_all_pass(c);
  }
}

// Kernels of GPUs differ by the rows of a kv head and by the width.
TEST(UnifiedMaximum, EveryNumberOfRowsAndWidthKeepsTheAccuracy) {
  TILEWISE_TRACE_SEED();
  int number = 0;
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16}) {
    for (const std::int64_t width : {64, 128}) {
      for (const std::int64_t rows : {8, 24, 50}) {
        Case c = make_case(Operation::kForward, dtype, {3, rows / 2, kManySplits, 4, 2, width});
        c.phi = {number % 3 == 2 ? 40.0 : -2.0 + number};
        c.causal = number % 2 == 0;
        c.used = {kManySplits, 5, 900};
        c.batch_invariant = number % 4 == 1;
        c.page_size = number % 4 == 3 ? 52 : 0;
        c.softcap = number % 5 == 4 ? 9 : 0;
        expect_all_pass(c);
        ++number;
      }
    }
  }
}

TEST(UnifiedMaximum, EveryKindOfDataKeepsTheAccuracy) {
  TILEWISE_TRACE_SEED();
  for (const char* name :
       {"scaled:64", "scaled:3000", "outliers", "rising", "falling", "sawtooth", "nan-q", "nan-k",
        "nan-v", "inf-q", "inf-k", "inf-v", "huge-v", "denormal-v", "tiny-qk", "zero-v",
        "positive-v", "one-hot", "equal-keys"}) {
    std::string error;
    const auto data = verify::parse_data(name, &error);
    ASSERT_TRUE(data.has_value()) << error;
    for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16}) {
      Case c = decode_case(dtype, 1);
      c.distribution = *data;
      c.used = {kManySplits, 700};
      expect_all_pass(c);
    }
  }
}

// Random normal scores stay within a few units of 0.
TEST(UnifiedMaximum, ServesScoresNearTheAnchor) {
  for (const std::int32_t dtype : kDtypes) {
    for (const double phi : {-8.0, -3.0, 0.0, 5.0, 8.0}) {
      Instance instance(decode_case(dtype, phi));
      for (const Kernel* const kernel : unified_kernels(instance)) {
        // Probs of fp16 have a narrower range than those of bf16 and fp32.
        const bool is_narrow = dtype == TILEWISE_FP16 && kernel->device == TILEWISE_CUDA;
        if (is_narrow && std::abs(phi) > 5) continue;
        EXPECT_EQ(fallbacks_of(kernel->name, instance), 0) << kernel->name << ", phi " << phi;
      }
    }
  }
}

// One sequence of two has scores of some hundred: its splits fall back, those of the other do not.
void expect_splits_fall_back_alone(std::int32_t dtype) {
  Case c = decode_case(dtype, 0);
  c.batch_invariant = true;  // else the splits of cuda_decode depend on the batch
  Instance instance(c);
  set_elements(instance.request().q, [&](std::int64_t i) {
    const RowIndex at = row_index(instance.request().q, c.layout, i);
    return (at.batch == 1 ? 200.0 : 1.0) * std::sin(static_cast<double>(i));
  });
  Instance calm(c);
  set_elements(calm.request().q, [](std::int64_t i) { return std::sin(static_cast<double>(i)); });
  Instance wild(c);
  set_elements(wild.request().q,
               [](std::int64_t i) { return 200 * std::sin(static_cast<double>(i)); });
  for (const Kernel* const kernel : unified_kernels(instance)) {
    const std::int64_t all = fallbacks_of(kernel->name, wild);
    EXPECT_EQ(fallbacks_of(kernel->name, calm), 0) << kernel->name;
    EXPECT_GT(all, 0) << kernel->name;
    EXPECT_EQ(2 * fallbacks_of(kernel->name, instance), all) << kernel->name;
  }
}

TEST(UnifiedMaximum, SplitsFallBackAlone) {
  expect_splits_fall_back_alone(TILEWISE_FP32);
  expect_splits_fall_back_alone(TILEWISE_BF16);
}

// Rows that see no key of a split, or only some, need no fallback.
TEST(UnifiedMaximum, RowsWithoutKeysOfASplitNeedNoFallback) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16}) {
    Case c = decode_case(dtype, 0);
    c.window_left = 100;
    c.q_len = 16;
    c.used = {1, 800};
    expect_all_pass(c);
    Instance instance(c);
    for (const Kernel* const kernel : unified_kernels(instance))
      EXPECT_EQ(fallbacks_of(kernel->name, instance), 0) << kernel->name;
  }
}

// Scores of 0 and a phi of 0, with values that are too large for sums without a maximum: splits
// fall back although their max is phi, and do not merge as those that stay at it.
TEST(UnifiedMaximum, FallbackWithPhiAsItsMaxKeepsTheAccuracy) {
  TILEWISE_TRACE_SEED();
  std::string error;
  Case c = decode_case(TILEWISE_BF16, 0);
  c.k_len = 600;
  c.distribution = verify::parse_data("huge-v", &error).value();
  const auto without_queries = [](const tilewise_problem& request) {
    set_elements(request.q, [](std::int64_t) { return 0.0; });
  };
  Instance instance(c);
  without_queries(instance.request());
  verify::Judge judge(c, without_queries);
  for (const Kernel* const kernel : unified_kernels(instance)) {
    EXPECT_GT(fallbacks_of(kernel->name, instance), 0);
    const verify::Verdict verdict = judge.judge(kernel->name);
    EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << verdict.text;
  }
}

// A query of NaN, and one whose scores phi does not serve, change no bit of the other rows.
TEST(UnifiedMaximum, RowsFallBackAlone) {
  Instance instance(decode_case(TILEWISE_FP32, 0));
  const tilewise_problem& request = instance.request();
  const std::int32_t layout = instance.description().layout;
  for (const Kernel* const kernel : unified_host_kernels(instance)) {
    run_for_bits(kernel->name, instance);
    const std::vector<double> expected = verify::numbers_of(request.out);
    const std::vector<double> queries = verify::numbers_of(request.q);
    for (const double factor : {std::nan(""), 300.0}) {
      SCOPED_TRACE(std::string(kernel->name) + ", times " + std::to_string(factor));
      const auto is_changed = [&](const RowIndex& at) {
        return at.batch == 1 && at.row == 2 && at.head == 3;
      };
      set_elements(request.q, [&](std::int64_t i) {
        return queries[static_cast<std::size_t>(i)] *
               (is_changed(row_index(request.q, layout, i)) ? factor : 1);
      });
      EXPECT_GT(fallbacks_of(kernel->name, instance), 0);
      const std::vector<double> out = verify::numbers_of(request.out);
      for (std::size_t i = 0; i < out.size(); ++i) {
        if (is_changed(row_index(request.out, layout, static_cast<std::int64_t>(i)))) continue;
        ASSERT_EQ(out[i], expected[i]) << "element " << i;
      }
    }
    set_elements(request.q, [&](std::int64_t i) { return queries[static_cast<std::size_t>(i)]; });
  }
}

// Without fallback, and with, threads and repetitions change no bit.
TEST(UnifiedMaximum, ThreadsChangeNoBit) {
  for (const double phi : {0.0, 300.0}) {
    Instance instance(decode_case(TILEWISE_BF16, phi));
    for (const Kernel* const kernel : unified_host_kernels(instance)) {
      const ShuffledExecutor one(1, 1), five(5, 2);
      const auto expected = run_for_bits(kernel->name, instance, {one.get()});
      EXPECT_EQ(run_for_bits(kernel->name, instance, {five.get()}), expected) << kernel->name;
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
