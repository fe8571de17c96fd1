// A run gives the same bits every time (T16), for any number and order of threads, and whatever
// else is in the batch (T17).
#include <cstring>

#include "plan/pool.h"
#include "registry/support.h"
#include "verify/cases.h"

namespace tilewise::tests {
namespace {

TEST(Determinism, EveryRunGivesTheSameBits) {
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

// Compares the bits of one thread with those of other numbers and orders of threads.
class ThreadCounts {
 public:
  void expect_same_bits(const Case& c) {
    Instance instance(c);
    give_forward_results(instance);
    for (const Kernel* kernel : runnable_kernels(c)) {
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

TEST(Determinism, ThreadsNeverChangeABit) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed() + 2);
  ThreadCounts threads;
  for (int i = 0; i < 40; ++i)
    threads.expect_same_bits(verify::random_case(kOperations[i % 2], kDtypes[i / 2 % 4], random));
}

// There are so many queries and keys that the number of threads decides how many blocks go
// together.
TEST(Determinism, ThreadsNeverChangeABitOfManyTiles) {
  TILEWISE_TRACE_SEED();
  ThreadCounts threads;
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16}) {
      Case c = make_case(operation, dtype, {1, 1100, 1100, 2, 1, 40});
      c.causal = true;
      c.output_dtype = TILEWISE_FP32;  // shows all bits of the sums
      threads.expect_same_bits(c);
    }
  }
}

// There are more keys than stay packed on the matrix unit, where two blocks per worker are enough.
TEST(Determinism, ThreadsNeverChangeABitBeyondThePackedKeys) {
  TILEWISE_TRACE_SEED();
  ThreadCounts threads;
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16}) {
    Case c = make_case(Operation::kForward, dtype, {1, 1150, 1100, 1, 1, 256});
    c.causal = dtype == TILEWISE_BF16;
    c.output_dtype = TILEWISE_FP32;
    threads.expect_same_bits(c);
  }
}

// There are more heads than have a work counter of their own, in sequences of every kind: empty
// ones, decode steps, and longer ones.
TEST(Determinism, ThreadsNeverChangeABitOfManyHeads) {
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

// Returns the elements [first, first + count) of the batch axis of a tensor.
tilewise_tensor part_of_batch(const tilewise_tensor& tensor, std::int64_t first,
                              std::int64_t count) {
  tilewise_tensor part = tensor;
  if (tensor.rank == 0) return part;
  part.data = static_cast<std::byte*>(tensor.data) +
              first * tensor.strides[0] * problem::dtype_size(tensor.dtype);
  part.shape[0] = count;
  return part;
}

// Runs every sequence of a batch alone and in batches of 1 to B: its rows keep their bits.
TEST(BatchInvariance, RowsKeepTheirBitsInEveryBatch) {
  TILEWISE_TRACE_SEED();
  constexpr std::int64_t kBatch = 6;
  struct Shape {
    std::int64_t q_len, k_len;
  };
  for (const Operation operation : kOperations) {
    for (const Shape shape : {Shape{1, 4500}, Shape{37, 300}}) {
      Case c = make_case(operation, TILEWISE_BF16, {kBatch, shape.q_len, shape.k_len, 4, 2, 16});
      c.batch_invariant = true;
      c.output_dtype = TILEWISE_FP32;  // shows all bits of the sums
      c.causal = shape.q_len > 1;
      Instance instance(c);
      give_forward_results(instance);
      for (const Kernel* kernel : kernels_for(instance)) {
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

// The rows of a sequence in (T, H, D) tensors.
struct Rows {
  std::int64_t first, count;
};
void copy_rows(const tilewise_tensor& from, Rows rows, const tilewise_tensor& to) {
  const std::vector<double> values = verify::numbers_of(from);
  const std::int64_t skip = rows.first * from.shape[1] * from.shape[2];
  set_elements(to, [&](std::int64_t i) { return values[static_cast<std::size_t>(skip + i)]; });
}
std::vector<std::uint64_t> bits_of(const tilewise_tensor& tensor, Rows rows) {
  const std::vector<std::uint64_t> all = tensor_bits(tensor);
  const std::int64_t row = tensor.shape[1] * tensor.shape[2];
  const auto begin = all.begin() + rows.first * row;
  return {begin, begin + rows.count * row};
}

// Runs the sequences of a packed batch, short and long, each alone: which kernel computes a
// sequence does not depend on the other ones.
TEST(BatchInvariance, PackedNeighboursChangeNothing) {
  TILEWISE_TRACE_SEED();
  const Rows q_rows[] = {{0, 33}, {33, 60}, {93, 5}};
  const Rows k_rows[] = {{0, 40}, {40, 300}, {340, 2100}};
  const struct {
    std::int64_t dim, window;
  } shapes[] = {{32, -1}, {128, -1}, {128, 127}, {200, -1}};
  for (const std::int32_t dtype : kDtypes) {
    for (const auto& [dim, window] : shapes) {
      Case all = make_case(Operation::kForward, dtype, {3, 0, 0, 2, 1, dim});
      all.q_packed = all.k_packed = all.batch_invariant = all.causal = true;
      all.window_left = window;
      for (std::size_t s = 0; s < 3; ++s) {
        all.q_lengths.push_back(q_rows[s].count);
        all.k_lengths.push_back(k_rows[s].count);
      }
      Instance together(all);
      for (const Kernel* kernel : kernels_for(together)) {
        run_for_bits(kernel->name, together);
        for (std::size_t s = 0; s < 3; ++s) {
          Case one = all;
          one.batch = 1;
          one.q_lengths = {q_rows[s].count};
          one.k_lengths = {k_rows[s].count};
          Instance alone(one);
          copy_rows(together.request().q, q_rows[s], alone.request().q);
          copy_rows(together.request().k, k_rows[s], alone.request().k);
          copy_rows(together.request().v, k_rows[s], alone.request().v);
          run_for_bits(kernel->name, alone);
          EXPECT_EQ(bits_of(together.request().out, q_rows[s]), tensor_bits(alone.request().out))
              << kernel->name << ": " << describe(one);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
