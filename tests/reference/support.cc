#include "support.h"

#include <gtest/gtest.h>

#include <thread>

#include "problem/validate.h"
#include "reference/kernels.h"
#include "verify/tensor.h"

namespace tilewise::reference_test {
namespace {

// Uses as many threads as items: the kernels must not request more items than their concurrency.
void run_on_threads(void* self, std::int64_t n, void (*fn)(void*, std::int64_t), void* context) {
  EXPECT_LE(n, *static_cast<const std::int64_t*>(self));
  std::vector<std::thread> threads;
  for (std::int64_t item = 1; item < n; ++item) threads.emplace_back(fn, context, item);
  if (n > 0) fn(context, 0);
  for (std::thread& thread : threads) thread.join();
}

Case base() {
  Case c;
  c.operation = Operation::kBackward;
  c.dtype = TILEWISE_FP64;
  c.batch = 2;
  c.q_len = 5;
  c.k_len = 7;
  c.heads = 2;
  c.kv_heads = 2;
  c.head_dim = 3;
  c.value_dim = 2;
  c.dlse = true;
  c.gradients |= verify::kDAlibiSlopes;
  return c;
}

template <class Change>
Case with(const Change& change) {
  Case c = base();
  change(c);
  return c;
}

void add_layouts(std::vector<Case>& cases) {
  cases.push_back(base());
  cases.push_back(with([](Case& c) { c.dlse = false; }));
  cases.push_back(with([](Case& c) { c.heads = 4; }));
  cases.push_back(with([](Case& c) { c.heads = 3, c.kv_heads = 1, c.layout = TILEWISE_BHSD; }));
  cases.push_back(
      with([](Case& c) { c.storage = verify::Storage::kPadded, c.layout = TILEWISE_BHSD; }));
  cases.push_back(with([](Case& c) { c.storage = verify::Storage::kTransposed; }));
  cases.push_back(with([](Case& c) { c.storage = verify::Storage::kExpanded; }));
  cases.push_back(with([](Case& c) {
    c.storage = verify::Storage::kInterleaved, c.k_len = c.q_len, c.value_dim = c.head_dim,
    c.heads = 4;
  }));
  cases.push_back(with([](Case& c) { c.scale = -0.7; }));
  cases.push_back(with([](Case& c) { c.scale = 0; }));
  cases.push_back(with([](Case& c) { c.q_len = 1, c.k_len = 1; }));
}

void add_sequences(std::vector<Case>& cases) {
  const auto packed = [](Case& c) {
    c.batch = 3, c.heads = 4, c.q_packed = c.k_packed = true;
    c.q_lengths = {4, 0, 3}, c.k_lengths = {3, 2, 6}, c.unowned = 2;
  };
  cases.push_back(with(packed));
  cases.push_back(with([&](Case& c) {
    packed(c), c.causal = true, c.wide_indices = true, c.max_lengths_known = false;
  }));
  cases.push_back(with([&](Case& c) {
    packed(c), c.used = {2, 0, 5}, c.bias = {true, 4, {true, true, true, true}}, c.dropout_p = 0.3;
  }));
  cases.push_back(with([](Case& c) {  // packed queries with a dense cache
    c.q_packed = true, c.q_lengths = {3, 4}, c.used = {7, 2}, c.causal = true, c.alibi = true;
  }));
  cases.push_back(with([](Case& c) {  // dense queries with packed keys
    c.k_packed = true, c.k_lengths = {6, 3}, c.window_left = 2;
  }));
  cases.push_back(with([](Case& c) { c.used = {0, 5}; }));
  cases.push_back(with([](Case& c) {
    c.used_q = {4, 0}, c.used = {7, 3}, c.causal = true, c.alibi = true, c.sink = true;
  }));
  cases.push_back(with([&](Case& c) {
    packed(c), c.used_q = {2, 0, 3}, c.causal = true, c.bias = {true, 4, {true, true, true, true}};
  }));
}

void add_masks(std::vector<Case>& cases) {
  for (const std::int32_t alignment : {TILEWISE_BOTTOM_RIGHT, TILEWISE_TOP_LEFT}) {
    for (const bool more_queries : {false, true}) {
      const auto common = [&](Case& c) {
        c.alignment = alignment;
        c.q_len = more_queries ? 7 : 5;
        c.k_len = more_queries ? 5 : 7;
      };
      cases.push_back(with([&](Case& c) { common(c), c.causal = true; }));
      cases.push_back(with([&](Case& c) { common(c), c.window_left = 1, c.window_right = 2; }));
    }
  }
  cases.push_back(with([](Case& c) { c.causal = true, c.window_left = 0; }));
  cases.push_back(with([](Case& c) {  // overlapping slices of every kind, per head
    c.q_len = 8, c.k_len = 9, c.slice_heads = true;
    c.slices = {{0, 4, 0, 5, 0, -1},
                {2, 6, 1, 6, 1, 0},
                {3, 8, 2, 9, 2, 1},
                {4, 8, 3, 9, 3, -1},
                {0, 8, 0, 1, 0, 1}};
  }));
  cases.push_back(with([](Case& c) {
    c.slices = {{1, 3, 2, 5, 1, -1}}, c.used = {4, 7}, c.alibi = true;
  }));
  cases.push_back(with([](Case& c) {  // slices of the whole packed token axis
    c.batch = 1, c.q_packed = c.k_packed = true, c.q_len = 8, c.k_len = 9;
    c.slices = {{0, 3, 0, 4, 1, -1}, {3, 8, 2, 9, 3, -1}};
    c.sink = true;
  }));
  cases.push_back(with([](Case& c) { c.mask = {true, 4, {true, true, true, true}}; }));
  cases.push_back(with([](Case& c) {
    c.mask = {true, 4, {true, false, false, true}}, c.causal = true;
  }));
  cases.push_back(with([](Case& c) { c.mask = {true, 4, {false, true, true, false}}; }));
}

void add_scores(std::vector<Case>& cases) {
  for (int dimension = -1; dimension < 4;
       ++dimension) {  // broadcast in no dimension, then in each single one
    cases.push_back(with([&](Case& c) {
      c.bias.present = true, c.heads = 4, c.softcap = 1.5;
      if (dimension >= 0) c.bias.full[static_cast<std::size_t>(dimension)] = false;
    }));
  }
  cases.push_back(with([](Case& c) { c.bias = {true, 4, {false, false, false, false}}; }));
  cases.push_back(with([](Case& c) {
    c.bias = {true, 2, {true, true, true, true}}, c.causal = true;
  }));
  cases.push_back(with([](Case& c) {
    c.bias = {true, 3, {true, true, false, true}}, c.bias_masks = true, c.bias_fp32 = true;
  }));
  cases.push_back(with([](Case& c) { c.softcap = 0.8; }));
  cases.push_back(with([](Case& c) { c.alibi = true; }));
  cases.push_back(
      with([](Case& c) { c.alibi = c.alibi_per_batch = true, c.causal = true, c.heads = 4; }));
  cases.push_back(with([](Case& c) { c.sink = true, c.heads = 4; }));
  cases.push_back(with([](Case& c) {
    c.sink = true, c.window_left = 0, c.window_right = 0, c.q_len = 9, c.k_len = 4;
  }));
  cases.push_back(with([](Case& c) {
    c.dropout_p = 0.4, c.dropout_seed = 0x123456789abcdefull, c.dropout_offset = 77;
  }));
  cases.push_back(with([](Case& c) {  // all options at once
    c.heads = 4, c.causal = true, c.window_left = 4, c.softcap = 2, c.alibi = true, c.sink = true,
    c.dropout_p = 0.25;
    c.bias = {true, 4, {false, true, true, true}}, c.bias_masks = true,
    c.mask = {true, 2, {true, true, true, true}};
  }));
}

}  // namespace

const std::vector<Rung>& rungs() {
  static const std::vector<Rung> kRungs = {
      {"three_pass", &reference::kThreePassForward, &reference::kThreePassBackward},
      {"online_softmax", &reference::kOnlineSoftmaxForward, &reference::kOnlineSoftmaxBackward},
      {"flash1", &reference::kFlash1Forward, &reference::kFlash1Backward},
      {"flash2", &reference::kFlash2Forward, &reference::kFlash2Backward},
      // These have no backward pass of their own.
      {"flash_decoding", &reference::kFlashDecodingForward, &reference::kFlash2Backward},
      {"flash_decoding_pp", &reference::kFlashDecodingPpForward, &reference::kFlash2Backward}};
  return kRungs;
}

void run(const Kernel& kernel, Operation operation, const tilewise_problem& request,
         const RunSetup& setup) {
  problem::Problem problem;
  ASSERT_EQ(problem::make_problem(operation, request, &problem), TILEWISE_OK) << problem::message();
  const std::int64_t bytes = kernel.workspace_bytes(problem, setup.concurrency);
  ASSERT_GE(bytes, 0);
  const verify::Memory workspace(static_cast<std::size_t>(bytes));
  tilewise_executor executor = {};
  std::int64_t concurrency = setup.concurrency;
  executor.max_concurrency = static_cast<std::int32_t>(concurrency);
  executor.parallel_for = run_on_threads;
  executor.self = &concurrency;
  const problem::RunContext context = {workspace.data(), &executor, concurrency, setup.sram_bytes,
                                       setup.traffic};
  ASSERT_EQ(kernel.run(problem, context), TILEWISE_OK) << problem::message();
}

std::vector<double> numbers(const tilewise_tensor& tensor) {
  std::vector<double> result;
  verify::for_each_element(tensor, [&](std::int64_t, std::int64_t offset) {
    result.push_back(verify::read_element(tensor, offset));
  });
  return result;
}

std::vector<Case> small_cases() {
  std::vector<Case> cases;
  add_layouts(cases);
  add_sequences(cases);
  add_masks(cases);
  add_scores(cases);
  for (std::size_t i = 0; i < cases.size(); ++i) cases[i].seed = i + 1;
  return cases;
}

}  // namespace tilewise::reference_test
