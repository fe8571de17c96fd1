// Score functions: kernels give the bits of the same term as bias, of a boolean mask, of none; the
// gradients are those of finite differences; each pair is visited once; what cannot take a function
// refuses it. matrix_test judges a function of the score and the position on every kernel.
#include <cmath>

#include "plan/pool.h"
#include "problem/sequence.h"
#include "problem/validate.h"
#include "registry/score_function_cases.h"
#include "verify/oracle.h"
#include "verify/score_function.h"

namespace tilewise::tests {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class ScoreFunctions : public testing::TestWithParam<Work> {
 protected:
  Operation operation() const { return GetParam().operation; }
  std::int32_t dtype() const { return GetParam().dtype; }
};
INSTANTIATE_TEST_SUITE_P(Registry, ScoreFunctions, testing::ValuesIn(kAllWork),
                         [](const auto& work) {
                           return operation_and_dtype(work.param.operation, work.param.dtype);
                         });

// The kernels that take score functions.
std::vector<const Kernel*> calling_kernels(Case c) {
  c.score_function = true;
  return runnable_kernels(c);
}

// The bits of the outputs but dbias.
std::vector<std::uint64_t> bits_of(const Kernel& kernel, Operation operation,
                                   tilewise_problem request, const RunSetup& setup = {}) {
  request.dbias = {};
  EXPECT_EQ(run_kernel(kernel.name, operation, request, setup), TILEWISE_OK) << problem::message();
  return output_bits(operation, request);
}

// Calls visit(number, head, query, key, i + d - j) for the elements of a tensor of shape (B, H, Sq,
// Sk), in row-major order.
template <class Visit>
void for_each_place(const Case& c, const tilewise_problem& request, const tilewise_tensor& tensor,
                    const Visit& visit) {
  problem::Problem problem;
  ASSERT_EQ(problem::make_problem(c.operation, request, &problem), TILEWISE_OK);
  std::vector<problem::Sequence> sequences(static_cast<std::size_t>(problem.batch));
  problem::fill_sequences(problem, sequences.data());
  const std::int64_t* const shape = tensor.shape;
  for (std::int64_t n = 0; n < verify::element_count(tensor); ++n) {
    const std::int64_t key = n % shape[3];
    const std::int64_t query = n / shape[3] % shape[2];
    const std::int64_t head = n / shape[3] / shape[2] % shape[1];
    const std::size_t batch = static_cast<std::size_t>(n / shape[3] / shape[2] / shape[1]);
    visit(n, head, query, key, query + sequences[batch].diagonal - key);
  }
}

// Sets the bias of an instance, which is contiguous, to the terms of a table.
void set_bias(const Instance& instance, const RelativeTable& table) {
  const tilewise_tensor& bias = instance.request().bias;
  for_each_place(
      instance.description(), instance.request(), bias,
      [&](std::int64_t n, std::int64_t head, std::int64_t, std::int64_t, std::int64_t distance) {
        verify::write_element(bias, n, table.at(head, distance));
      });
}

TEST_P(ScoreFunctions, IdentityGivesTheBitsOfABiasOfZeros) {
  for (const Case& c : biased_cases(operation(), dtype())) {
    Instance instance(c);
    give_forward_results(instance);
    tilewise_problem biased = instance.request();
    set_elements(biased.bias, [](std::int64_t) { return 0.0; });
    tilewise_problem changed = biased;
    changed.bias = {};
    changed.score_function = {[](void*, const ScoreTile*, void*) {},
                              [](void*, const ScoreTile*, const void*, void*) {}, nullptr, 0};
    for (const Kernel* kernel : calling_kernels(c)) {
      const auto expected = bits_of(*kernel, operation(), biased);
      EXPECT_EQ(bits_of(*kernel, operation(), changed), expected)
          << kernel->name << ": " << describe(c);
    }
  }
}

TEST_P(ScoreFunctions, LearnedRelativePositionGivesTheBitsOfItsBias) {
  TILEWISE_TRACE_SEED();
  for (const Case& c : biased_cases(operation(), dtype())) {
    RelativeTable table(c.heads);
    Instance instance(c);
    set_bias(instance, table);
    give_forward_results(instance);
    tilewise_problem changed = instance.request();
    changed.bias = {};
    changed.score_function = table.function();
    for (const Kernel* kernel : calling_kernels(c)) {
      const auto expected = bits_of(*kernel, operation(), instance.request());
      EXPECT_EQ(bits_of(*kernel, operation(), changed), expected)
          << kernel->name << ": " << describe(c);
    }
  }
}

// A dBias in 16 bits would be rounded.
class TableGradient : public testing::TestWithParam<std::int32_t> {};
INSTANTIATE_TEST_SUITE_P(Registry, TableGradient, testing::Values(TILEWISE_FP64, TILEWISE_FP32),
                         [](const auto& dtype) {
                           return operation_and_dtype(Operation::kBackward, dtype.param);
                         });

TEST_P(TableGradient, IsTheSumOfDBias) {
  TILEWISE_TRACE_SEED();
  constexpr Operation kBackward = Operation::kBackward;
  for (const Case& c : biased_cases(kBackward, GetParam())) {
    RelativeTable table(c.heads);
    Instance instance(c);
    const tilewise_tensor& dbias = instance.request().dbias;
    set_bias(instance, table);
    give_forward_results(instance);
    tilewise_problem changed = instance.request();
    changed.bias = changed.dbias = changed.dq = changed.dk = changed.dv = {};
    changed.score_function = table.function();
    for (const Kernel* kernel : calling_kernels(c)) {
      ASSERT_EQ(run_kernel(kernel->name, kBackward, instance.request()), TILEWISE_OK);
      std::vector<double> expected(static_cast<std::size_t>(c.heads * RelativeTable::kPlaces));
      double size = 0;
      for_each_place(c, instance.request(), dbias,
                     [&](std::int64_t n, std::int64_t head, std::int64_t, std::int64_t,
                         std::int64_t distance) {
                       const double x = verify::read_element(dbias, n);
                       expected[RelativeTable::place(head, distance)] += x;
                       size += std::fabs(x);
                     });
      ASSERT_EQ(run_kernel(kernel->name, kBackward, changed), TILEWISE_OK);  // of the table alone
      const std::vector<double> gradient = table.take_gradient();
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        EXPECT_NEAR(gradient[i], expected[i], size * 3e-7)
            << kernel->name << ", place " << i << ": " << describe(c);
      }
    }
    EXPECT_EQ(table.dirty_pairs(), 0);
  }
}

// The function masks every third pair, and the key kHidden for all queries.
constexpr std::int64_t kHidden = 21;
bool shows(std::int64_t query, std::int64_t key) {
  return (query + 2 * key) % 3 != 0 && key != kHidden;
}
template <class T>
void hide(const ScoreTile& tile, T* scores) {
  for_each_pair(tile, [&](std::int64_t query, std::int64_t key, std::int64_t at) {
    if (!shows(query, key)) scores[at] = static_cast<T>(-kInfinity);
  });
}

void set_hidden_key(const tilewise_problem& request, double x) {
  for (const tilewise_tensor& tensor : {request.k, request.v}) {
    for (std::int64_t column = 0; column < tensor.shape[3]; ++column)
      verify::write_element(tensor, kHidden * tensor.strides[1] + column, x);
  }
}

TEST_P(ScoreFunctions, MinusInfinityMasksAPairWhateverItsKeyHolds) {
  const ScoreFunction function([](const ScoreTile& tile, auto* scores) { hide(tile, scores); },
                               [](const ScoreTile&, const auto*, auto*) {});
  for (const std::int64_t q_len : {60, 3}) {
    Case c = make_case(operation(), dtype(), {1, q_len, 600, 2, 1, 40});
    c.causal = true;
    c.mask.present = true;
    Instance instance(c);
    const tilewise_problem& request = instance.request();
    for_each_place(
        c, request, request.mask,
        [&](std::int64_t n, std::int64_t, std::int64_t query, std::int64_t key, std::int64_t) {
          static_cast<std::uint8_t*>(request.mask.data)[n] = shows(query, key) ? 1 : 0;
        });
    set_hidden_key(request, 1);
    give_forward_results(instance);
    tilewise_problem changed = request;
    changed.mask = {};
    changed.score_function = function.get();
    for (const Kernel* kernel : calling_kernels(c)) {
      const auto expected = bits_of(*kernel, operation(), request);
      for (const double held : {1.0, std::nan("")}) {
        set_hidden_key(request, held);
        EXPECT_EQ(bits_of(*kernel, operation(), changed), expected)
            << kernel->name << ", key of " << held << ": " << describe(c);
      }
      set_hidden_key(request, 1);
    }
  }
}

// Returns sum(out * dout) + sum(lse * dlse) of the oracle.
double loss_of(const Instance& instance) {
  verify::Oracle oracle(instance.request());
  oracle.run(Operation::kForward);
  double sum = 0;
  for (const auto& pair : {std::pair{oracle.results().out, instance.request().dout},
                           std::pair{oracle.results().lse, instance.request().dlse}}) {
    const tilewise_tensor& result = pair.first;
    const tilewise_tensor& weight = pair.second;
    std::vector<double> weights;
    verify::for_each_element(weight, [&](std::int64_t, std::int64_t offset) {
      weights.push_back(verify::read_element(weight, offset));
    });
    verify::for_each_element(result, [&](std::int64_t i, std::int64_t offset) {
      const double x = verify::read_element(result, offset);
      if (x != -kInfinity) sum += x * weights[static_cast<std::size_t>(i)];
    });
  }
  return sum;
}

TEST(ScoreFunction, GradientsAreThoseOfFiniteDifferences) {
  TILEWISE_TRACE_SEED();
  Case c = make_case(Operation::kBackward, TILEWISE_FP32, {1, 9, 13, 2, 1, 5});
  c.score_function = c.causal = c.dlse = c.alibi = true;
  c.bias.present = c.bias_fp32 = true;
  c.softcap = 3;
  Instance instance(c);
  verify::Oracle oracle(instance.request());
  oracle.run(Operation::kBackward);
  const std::pair<tilewise_tensor, tilewise_tensor> pairs[] = {
      {instance.request().q, oracle.results().dq},
      {instance.request().k, oracle.results().dk},
      {instance.request().bias, oracle.results().dbias}};
  for (const auto& pair : pairs) {
    const tilewise_tensor& input = pair.first;
    const tilewise_tensor& gradient = pair.second;
    std::vector<double> expected;
    verify::for_each_element(gradient, [&](std::int64_t, std::int64_t offset) {
      expected.push_back(verify::read_element(gradient, offset));
    });
    verify::for_each_element(input, [&](std::int64_t i, std::int64_t offset) {
      if (i % 5 != 0) return;
      const double x = verify::read_element(input, offset);
      constexpr double kStep = 0x1p-8;
      double loss[4];
      const double steps[] = {-2, -1, 1, 2};
      for (int n = 0; n < 4; ++n) {
        verify::write_element(input, offset, x + steps[n] * kStep);
        loss[n] = loss_of(instance);
      }
      verify::write_element(input, offset, x);
      const double slope = (8 * (loss[2] - loss[1]) - (loss[3] - loss[0])) / (12 * kStep);
      EXPECT_NEAR(slope, expected[static_cast<std::size_t>(i)], 2e-7) << i;
    });
  }
}

// Counts the visits of each pair in the backward pass, and those outside of the sequence.
struct Visits {
  std::int64_t heads, queries, keys;
  std::vector<int> count = std::vector<int>(static_cast<std::size_t>(heads * queries * keys));
  std::mutex mutex = {};
  int outside = 0;

  static void forward(void*, const ScoreTile*, void*) {}
  static void backward(void* self, const ScoreTile* tile, const void*, void*) {
    Visits& visits = *static_cast<Visits*>(self);
    const std::lock_guard lock(visits.mutex);
    if (tile->row_stride != 1 && tile->key_stride != 1) ++visits.outside;
    for_each_pair(*tile, [&](std::int64_t query, std::int64_t key, std::int64_t) {
      if (query < 0 || query >= visits.queries || key < 0 || key >= visits.keys) {
        ++visits.outside;
        return;
      }
      ++visits.count[static_cast<std::size_t>((tile->head * visits.queries + query) * visits.keys +
                                              key)];
    });
  }
};

TEST(ScoreFunction, BackwardVisitsEachVisiblePairOnce) {
  for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16}) {
    Case c = make_case(Operation::kBackward, dtype, {1, 150, 290, 4, 2, 32});
    c.causal = true;
    c.alibi = true;
    c.gradients |= verify::kDAlibiSlopes;  // a second sweep over the pairs
    Instance instance(c);
    give_forward_results(instance);
    for (const Kernel* kernel : calling_kernels(c)) {
      Visits visits{c.heads, c.q_len, c.k_len};
      tilewise_problem request = instance.request();
      request.score_function = {Visits::forward, Visits::backward, &visits, 0};
      ASSERT_EQ(run_kernel(kernel->name, c.operation, request), TILEWISE_OK);
      EXPECT_EQ(visits.outside, 0) << kernel->name;
      std::int64_t wrong = 0;
      for (std::size_t i = 0; i < visits.count.size(); ++i) {
        const std::int64_t key = static_cast<std::int64_t>(i) % c.k_len;
        const std::int64_t query = static_cast<std::int64_t>(i) / c.k_len % c.q_len;
        const bool visible = key <= query + c.k_len - c.q_len;
        wrong += visits.count[i] > 1 || (visible && visits.count[i] != 1) ? 1 : 0;
      }
      EXPECT_EQ(wrong, 0) << kernel->name;
    }
  }
}

TEST(ScoreFunction, ThreadsChangeNoBitOfAGradientOfItsOwn) {
  TILEWISE_TRACE_SEED();
  Case c = make_case(Operation::kBackward, TILEWISE_FP32, {2, 300, 700, 4, 2, 32});
  c.causal = true;
  Instance instance(c);
  give_forward_results(instance);
  RelativeTable table(c.heads);
  tilewise_problem request = instance.request();
  request.score_function = table.function();
  plan::Pool seven(7);
  const tilewise_executor of_seven = seven.executor();
  tilewise_executor serial;
  tilewise_executor_init(&serial);
  const ShuffledExecutor shuffled(3, run_seed());
  for (const Kernel* kernel : calling_kernels(c)) {
    if (kernel->is_rung) continue;
    const auto expected = bits_of(*kernel, c.operation, request, {&serial});
    const std::vector<double> gradient = table.take_gradient();
    for (const tilewise_executor* executor : {&of_seven, shuffled.get()}) {
      EXPECT_EQ(bits_of(*kernel, c.operation, request, {executor}), expected) << kernel->name;
      EXPECT_EQ(table.take_gradient(), gradient) << kernel->name;
    }
  }
}

// The kernels multiply small gradients by powers of two, which a function must not see.
TEST(ScoreFunction, GetsSmallGradientsAsTheyAre) {
  TILEWISE_TRACE_SEED();
  Case c = make_case(Operation::kBackward, TILEWISE_FP32, {1, 40, 70, 2, 1, 32});
  Instance instance(c);
  give_forward_results(instance);
  RelativeTable table(c.heads);
  tilewise_problem request = instance.request();
  request.score_function = table.function();
  std::vector<double> dout;
  verify::for_each_element(request.dout, [&](std::int64_t, std::int64_t offset) {
    dout.push_back(verify::read_element(request.dout, offset));
  });
  const auto gradient_of = [&](const Kernel& kernel, double factor) {
    set_elements(request.dout,
                 [&](std::int64_t i) { return dout[static_cast<std::size_t>(i)] * factor; });
    EXPECT_EQ(run_kernel(kernel.name, c.operation, request), TILEWISE_OK);
    return table.take_gradient();
  };
  for (const Kernel* kernel : calling_kernels(c)) {
    const std::vector<double> gradient = gradient_of(*kernel, 1);
    for (const double factor : {0x1p-70, 0x1p60}) {
      const std::vector<double> scaled = gradient_of(*kernel, factor);
      for (std::size_t i = 0; i < gradient.size(); ++i)
        EXPECT_NEAR(scaled[i] / factor, gradient[i], 1e-5) << kernel->name << ", place " << i;
    }
  }
}

TEST(ScoreFunction, MaskedKeysThatHoldNanReachNoGradientOfItsOwn) {
  TILEWISE_TRACE_SEED();
  Case c = make_case(Operation::kBackward, TILEWISE_FP32, {1, 30, 33, 2, 1, 24});
  c.causal = true;
  c.alignment = TILEWISE_TOP_LEFT;  // no query sees the last three keys
  Instance instance(c);
  give_forward_results(instance);
  RelativeTable table(c.heads);
  tilewise_problem request = instance.request();
  request.score_function = table.function();
  const auto set_last_keys = [&](double x) {
    for (const tilewise_tensor& tensor : {request.k, request.v}) {
      for (std::int64_t at = 30 * tensor.strides[1]; at < 33 * tensor.strides[1]; ++at)
        verify::write_element(tensor, at, x);
    }
  };
  for (const Kernel* kernel : calling_kernels(c)) {
    set_last_keys(1);
    const auto expected = bits_of(*kernel, c.operation, request);
    const std::vector<double> gradient = table.take_gradient();
    set_last_keys(std::nan(""));
    EXPECT_EQ(bits_of(*kernel, c.operation, request), expected) << kernel->name;
    EXPECT_EQ(table.take_gradient(), gradient) << kernel->name;
    EXPECT_EQ(table.dirty_pairs(), 0) << kernel->name;
  }
}

}  // namespace
}  // namespace tilewise::tests
