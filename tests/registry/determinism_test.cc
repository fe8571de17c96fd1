// T16 the same bits from run to run, T17 whatever the threads, their order, and what is batched
// beside a row.
#include <cstring>

#include "plan/pool.h"
#include "registry/support.h"
#include "verify/cases.h"

namespace tilewise::tests {
namespace {

TEST(Reliability, T16_SameBitsFromRunToRun) {
  TILEWISE_TRACE_SEED();
  constexpr int kRuns = 25;
  plan::Pool pool(4);
  const tilewise_executor executor = pool.executor();
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16}) {
      Case c = make_case(operation, dtype, {5, 67, 67, 4, 2, 24});
      c.causal = c.sink = true;
      c.bias = {true, 4, {false, true, true, true}};
      c.dropout_p = 0.1;
      Instance instance(c);
      give_forward_results(instance);
      for (const Kernel* kernel : runnable_kernels(operation, dtype)) {
        const auto expected = run_for_bits(kernel->name, instance, {&executor});
        for (int run = 1; run < kRuns; ++run) {
          ASSERT_EQ(run_for_bits(kernel->name, instance, {&executor}), expected)
              << kernel->name << ", run " << run << ": " << describe(c);
        }
      }
    }
  }
}

// One thread, and then others, in other numbers and orders.
class ThreadCounts {
 public:
  void expect_same_bits(const Case& c) {
    Instance instance(c);
    give_forward_results(instance);
    for (const Kernel* kernel : runnable_kernels(c.operation, c.dtype)) {
      tilewise_executor serial;
      tilewise_executor_init(&serial);
      const auto expected = run_for_bits(kernel->name, instance, {&serial});
      const RunSetup setups[] = {
          {&of_two_}, {&of_seven_}, {shuffled_.get()}, {&serial, 9}, {&of_two_, 1}};
      for (const RunSetup& setup : setups) {
        ASSERT_EQ(run_for_bits(kernel->name, instance, setup), expected)
            << kernel->name << ", concurrency " << setup.executor->max_concurrency << ": "
            << describe(c);
      }
    }
  }

 private:
  plan::Pool two_{2};
  plan::Pool seven_{7};
  tilewise_executor of_two_ = two_.executor();
  tilewise_executor of_seven_ = seven_.executor();
  ShuffledExecutor shuffled_{3, run_seed()};
};

TEST(Reliability, T17_ThreadsNeverChangeABit) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed() + 2);
  ThreadCounts threads;
  for (int i = 0; i < 40; ++i)
    threads.expect_same_bits(verify::random_case(kOperations[i % 2], kDtypes[i / 2 % 4], random));
}

// So many queries and keys that the number of threads decides how many go together.
TEST(Reliability, T17_ThreadsAcrossTiles) {
  TILEWISE_TRACE_SEED();
  ThreadCounts threads;
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16}) {
      Case c = make_case(operation, dtype, {1, 1100, 1100, 2, 1, 40});
      c.causal = true;
      c.output_dtype = TILEWISE_FP32;  // all bits of the sums
      threads.expect_same_bits(c);
    }
  }
}

// More keys than stay packed on the matrix unit, where two blocks a worker are enough.
TEST(Reliability, T17_ThreadsBeyondThePackedKeys) {
  TILEWISE_TRACE_SEED();
  ThreadCounts threads;
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16}) {
    Case c = make_case(Operation::kForward, dtype, {1, 1150, 1100, 1, 1, 256});
    c.causal = dtype == TILEWISE_BF16;
    c.output_dtype = TILEWISE_FP32;
    threads.expect_same_bits(c);
  }
}

// Heads beyond what has a counter of its own, in sequences of every kind: none, decoded, and more.
TEST(Reliability, T17_ThreadsOverManyHeads) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed() + 3);
  ThreadCounts threads;
  for (const std::int32_t dtype : kDtypes) {
    Case c = make_case(Operation::kForward, dtype, {87, 0, 0, 6, 3, 16});
    c.q_packed = c.k_packed = c.causal = true;
    for (std::int64_t b = 0; b < c.batch; ++b) {
      c.q_lengths.push_back(b % 7 == 0 ? 0 : random.between(1, 40));
      c.k_lengths.push_back(random.between(0, 50));
    }
    expect_all_pass(c);
    threads.expect_same_bits(c);
  }
}

// Elements [first, first + count) of the batch axis of a tensor.
tilewise_tensor part_of_batch(const tilewise_tensor& tensor, std::int64_t first,
                              std::int64_t count) {
  tilewise_tensor part = tensor;
  if (tensor.rank == 0) return part;
  part.data = static_cast<std::byte*>(tensor.data) +
              first * tensor.strides[0] * problem::dtype_size(tensor.dtype);
  part.shape[0] = count;
  return part;
}

// Every sequence of a batch alone and in batches of 1 to B: its rows keep their bits.
TEST(Reliability, T17_BatchInvariance) {
  TILEWISE_TRACE_SEED();
  constexpr std::int64_t kBatch = 6;
  struct Shape {
    std::int64_t q_len, k_len;
  };
  for (const Operation operation : kOperations) {
    for (const Shape shape : {Shape{1, 4500}, Shape{37, 300}}) {
      Case c = make_case(operation, TILEWISE_BF16, {kBatch, shape.q_len, shape.k_len, 4, 2, 16});
      c.batch_invariant = true;
      c.output_dtype = TILEWISE_FP32;  // all bits of the sums
      c.causal = shape.q_len > 1;
      Instance instance(c);
      give_forward_results(instance);
      for (const Kernel* kernel : runnable_kernels(operation, TILEWISE_BF16)) {
        const auto expected = run_for_bits(kernel->name, instance);
        for (const std::int64_t size : {1, 2, 5}) {
          instance.prepare(operation);
          for (std::int64_t first = 0; first < kBatch; first += size) {
            tilewise_problem part = instance.request();
            const std::int64_t count = std::min(size, kBatch - first);
            for (const auto member :
                 {&tilewise_problem::q, &tilewise_problem::k, &tilewise_problem::v,
                  &tilewise_problem::out, &tilewise_problem::lse, &tilewise_problem::dout,
                  &tilewise_problem::dq, &tilewise_problem::dk, &tilewise_problem::dv}) {
              part.*member = part_of_batch(part.*member, first, count);
            }
            ASSERT_EQ(run_kernel(kernel->name, operation, part), TILEWISE_OK);
          }
          EXPECT_EQ(output_bits(operation, instance.request()), expected)
              << kernel->name << " in batches of " << size << ": " << describe(c);
        }
      }
    }
  }
}

// One long sequence beside short ones in a packed batch.
TEST(Reliability, T17_PackedNeighboursChangeNothing) {
  TILEWISE_TRACE_SEED();
  Case alone = make_case(Operation::kForward, TILEWISE_FP32, {1, 0, 0, 2, 1, 32});
  alone.q_packed = alone.k_packed = alone.batch_invariant = alone.causal = true;
  alone.q_lengths = {150};
  alone.k_lengths = {700};
  Case beside = alone;
  beside.batch = 3;
  beside.q_lengths = {33, 150, 5};
  beside.k_lengths = {40, 700, 1};
  Instance one(alone);
  Instance three(beside);
  const auto copy_rows = [](const tilewise_tensor& from, const tilewise_tensor& to,
                            std::int64_t first) {
    const std::vector<double> values = values_of(from);
    const std::size_t skip = static_cast<std::size_t>(first * to.shape[1] * to.shape[2]);
    set_elements(to, [&](std::int64_t i) {
      const std::size_t n = static_cast<std::size_t>(i);
      return n >= skip && n - skip < values.size() ? values[n - skip] : 0.5;
    });
  };
  copy_rows(one.request().q, three.request().q, 33);
  copy_rows(one.request().k, three.request().k, 40);
  copy_rows(one.request().v, three.request().v, 40);
  for (const Kernel* kernel : runnable_kernels(Operation::kForward)) {
    run_for_bits(kernel->name, one);
    run_for_bits(kernel->name, three);
    const auto expected = tensor_bits(one.request().out);
    const auto all = tensor_bits(three.request().out);
    const std::ptrdiff_t first = 33 * 2 * 32;
    const std::vector<std::uint64_t> rows(
        all.begin() + first, all.begin() + first + static_cast<std::ptrdiff_t>(expected.size()));
    EXPECT_EQ(rows, expected) << kernel->name;
  }
}

}  // namespace
}  // namespace tilewise::tests
