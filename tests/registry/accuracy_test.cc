// Accuracy (T01), rows without keys (T02), tiles without keys (T03), extreme scores (T05) and empty
// sequences (T07): the accuracy rule for every kernel, and equalities that must hold exactly.
#include <cmath>

#include "registry/support.h"

namespace tilewise::tests {
namespace {

using verify::Distribution;

constexpr double kInfinity = HUGE_VAL;

TEST(KernelAccuracy, HoldsForHeadDimensionsMasksAndDistributions) {
  TILEWISE_TRACE_SEED();
  constexpr std::int64_t kDims[] = {32, 64, 72, 80, 96, 128, 192, 256};
  constexpr Distribution kDistributions[] = {
      Distribution::kNormal,  Distribution::kOutlierElements, Distribution::kEqual,
      Distribution::kOneHot,  Distribution::kAlternating,     Distribution::kSubnormal,
      Distribution::kRepeated};
  int step = static_cast<int>(run_seed() % 28);  // another pairing of the lists for each seed
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      for (const std::int64_t dim : kDims) {
        ++step;
        const std::int64_t group = std::int64_t{1} << (step % 3 * 3 / 2);  // 1, 2, 8
        Case c = make_case(operation, dtype, {1, 65, 97, group, 1, dim});
        c.causal = step % 4 == 1;
        c.window_left = step % 4 == 2 ? 20 : -1;
        c.softcap = step % 4 == 3 ? 5 : 0;
        c.alibi = step % 4 == 0;
        c.distribution = kDistributions[step % 7];
        expect_all_pass(c);
      }
    }
  }
}

// Values with a mean show every error of a row's sum, which cancels in sums of values without one.
// Scores of deviation 8 leave many small terms beside one large one.
TEST(KernelAccuracy, ValuesWithAMeanHaveErrorsWithoutOne) {
  TILEWISE_TRACE_SEED();
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      Case c = make_case(operation, dtype, {1, 320, 512, 8, 2, 8});
      c.seed = run_seed();
      c.distribution.parts = {{Distribution::kOffset, 4}};
      expect_all_pass(c);
      c.distribution.parts = {{Distribution::kPositiveV, 0}, {Distribution::kScaled, 8}};
      expect_all_pass(c);
    }
  }
}

// There are so few keys that many rows have a probability of 1, which bf16 holds exactly, unlike
// its product with 1 / (1 - p).
TEST(KernelAccuracy, HoldsWhereDropoutMeetsProbabilitiesOfOne) {
  TILEWISE_TRACE_SEED();
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16}) {
    Case c = make_case(Operation::kForward, dtype, {3, 257, 127, 4, 1, 16});
    c.used = {97, 120, 12};
    c.output_dtype = TILEWISE_FP32;  // no rounding of the output hides that of the probabilities
    c.dropout_p = 0.1;
    c.dropout_seed = run_seed();
    c.seed = run_seed() + 1;
    expect_all_pass(c);
  }
}

// Returns cases in which some rows see no key, each for another reason.
std::vector<Case> cases_with_empty_rows(Operation operation, std::int32_t dtype) {
  std::vector<Case> cases;
  Case c = make_case(operation, dtype, {2, 75, 40, 4, 2, 40});
  c.causal = true;  // 35 rows before the diagonal
  cases.push_back(c);
  c.sink = c.dlse = true;
  cases.push_back(c);
  c = make_case(operation, dtype, {1, 70, 33, 2, 1, 16});
  c.alignment = TILEWISE_TOP_LEFT;  // rows from 34 on lie after the last key
  c.window_left = 1;
  c.window_right = 0;
  cases.push_back(c);
  c = make_case(operation, dtype, {1, 50, 50, 2, 2, 24});
  c.slices = {{10, 20, 0, 50, 0, -1}, {30, 40, 5, 25, 1, 0}};
  c.slice_heads = true;
  cases.push_back(c);
  c = make_case(operation, dtype, {3, 20, 30, 2, 1, 8});
  c.used = {0, 30, 0};
  cases.push_back(c);
  cases.push_back(make_case(operation, dtype, {2, 20, 0, 2, 1, 8}));
  c = make_case(operation, dtype, {2, 20, 30, 2, 1, 8});
  c.mask = {true, 4, {true, false, true, false}};  // masks a whole row at once
  cases.push_back(c);
  c = make_case(operation, dtype, {2, 90, 30, 2, 1, 8});  // masks one row in ten: never none of 180
  c.bias = {true, 4, {true, false, true, false}};
  c.bias_masks = true;
  cases.push_back(c);
  return cases;
}

bool is_empty_row(double lse_without_sink) { return lse_without_sink == -kInfinity; }

// Returns the LSE of each (b, h, i) without the sink, from the oracle.
std::vector<double> lse_without_sink(const Instance& instance) {
  tilewise_problem request = instance.request();
  request.sink = tilewise_tensor{};
  request.dsink = tilewise_tensor{};
  verify::Oracle oracle(request);
  oracle.run(Operation::kForward);
  return verify::numbers_of(oracle.results().lse);
}

// Calls fn(index of the row in lse, value) for every element of a (B, S, H, width) tensor.
template <class Function>
void for_each_row_element(const tilewise_tensor& tensor, Function fn) {
  verify::for_each_element(tensor, [&](std::int64_t i, std::int64_t offset) {
    const RowIndex at = row_index(tensor, TILEWISE_BSHD, i);
    const std::int64_t rows = tensor.shape[1];
    const std::int64_t heads = tensor.shape[2];
    fn(static_cast<std::size_t>((at.batch * heads + at.head) * rows + at.row), offset);
  });
}

std::int64_t count_wrong_empty_rows(const Instance& instance,
                                    const std::vector<double>& plain_lse) {
  const tilewise_problem& request = instance.request();
  const bool forward = instance.description().operation == Operation::kForward;
  const tilewise_tensor& result = forward ? request.out : request.dq;
  std::int64_t wrong = 0;
  for_each_row_element(result, [&](std::size_t row, std::int64_t offset) {
    if (is_empty_row(plain_lse[row]) && verify::read_element(result, offset) != 0) ++wrong;
  });
  if (!forward) return wrong;
  const std::vector<double> lse = verify::numbers_of(request.lse);
  const std::vector<double> sink = verify::numbers_of(request.sink);
  const std::size_t rows = static_cast<std::size_t>(request.q.shape[1]);
  for (std::size_t i = 0; i < lse.size(); ++i) {
    if (!is_empty_row(plain_lse[i])) continue;
    const double expected = sink.empty() ? -kInfinity : sink[i / rows % sink.size()];
    if (std::abs(lse[i] - expected) > 1e-6 && lse[i] != expected) ++wrong;
  }
  return wrong;
}

TEST(RowsWithoutKeys, HaveZeroOutputAndTheLseOfTheSink) {
  TILEWISE_TRACE_SEED();
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      for (const Case& c : cases_with_empty_rows(operation, dtype)) {
        expect_all_pass(c);
        Instance instance(c);
        give_forward_results(instance);
        const std::vector<double> plain_lse = lse_without_sink(instance);
        EXPECT_GT(std::count(plain_lse.begin(), plain_lse.end(), -kInfinity), 0) << describe(c);
        for (const Kernel* kernel : kernels_for(instance)) {
          run_for_bits(kernel->name, instance);
          EXPECT_EQ(count_wrong_empty_rows(instance, plain_lse), 0)
              << kernel->name << ": " << describe(c);
        }
      }
    }
  }
}

// A row without keys affects no gradient: dK and dV keep every bit, whether q and dout of that row
// hold numbers, NaN or infinity. (Where a bias of -inf masks, a NaN score stays NaN.)
TEST(RowsWithoutKeys, ReachNoGradient) {
  TILEWISE_TRACE_SEED();
  for (const Case& c : cases_with_empty_rows(Operation::kBackward, TILEWISE_FP32)) {
    if (c.bias_masks) continue;
    Instance clean(c);
    give_forward_results(clean);
    const std::vector<double> plain_lse = lse_without_sink(clean);
    Instance poisoned(c);
    give_forward_results(poisoned);
    for (const auto member : {&tilewise_problem::q, &tilewise_problem::dout}) {
      const tilewise_tensor& tensor = poisoned.request().*member;
      for_each_row_element(tensor, [&](std::size_t row, std::int64_t offset) {
        if (!is_empty_row(plain_lse[row])) return;
        verify::write_element(tensor, offset, row % 2 == 0 ? std::nan("") : kInfinity);
      });
    }
    for (const Kernel* kernel : runnable_kernels(Operation::kBackward)) {
      run_for_bits(kernel->name, clean);
      run_for_bits(kernel->name, poisoned);
      for (const auto member :
           {&tilewise_problem::dq, &tilewise_problem::dk, &tilewise_problem::dv}) {
        EXPECT_EQ(tensor_bits(clean.request().*member), tensor_bits(poisoned.request().*member))
            << kernel->name << ": " << describe(c);
      }
    }
  }
}

// No key of the first key tiles is visible, to all rows or to some.
TEST(EmptyTiles, ChangeNothing) {
  TILEWISE_TRACE_SEED();
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      Case c = make_case(operation, dtype, {1, 60, 300, 2, 1, 32});
      c.bias = {true, 4, {false, false, true, true}};
      expect_all_pass(c, [](const tilewise_problem& request) {
        set_elements(request.bias,
                     [&](std::int64_t i) { return i % 300 < 5 * (i / 300) ? -kInfinity : 0.25; });
      });
      c.bias.present = false;
      c.mask = {true, 4, {false, false, true, true}};
      expect_all_pass(c, [](const tilewise_problem& request) {
        for (std::int64_t i = 0; i < 60 * 300; ++i) {
          static_cast<std::uint8_t*>(request.mask.data)[i] = i % 300 >= 270 ? 1 : 0;
        }
      });
      c.mask.present = false;
      c.window_left = 3;
      c.window_right = 5;
      expect_all_pass(c);
    }
  }
}

// Sets q near 1 and k near score / (D * scale) in each row: the scores are known within 1 %, and
// their roundings are as random as those of other inputs.
void set_scores(const tilewise_problem& request, double (*score)(std::int64_t key)) {
  const double dim = static_cast<double>(request.q.shape[3]);
  Random random(run_seed());
  const auto near_one = [&] { return 1 + 0.01 * random.uniform(); };
  set_elements(request.q, [&](std::int64_t) { return near_one(); });
  set_elements(request.k, [&](std::int64_t i) {
    return score(row_index(request.k, TILEWISE_BSHD, i).row) / std::sqrt(dim) * near_one();
  });
}

TEST(ExtremeScores, KeepTheAccuracy) {
  TILEWISE_TRACE_SEED();
  double (*const kScores[])(std::int64_t) = {
      [](std::int64_t j) { return -300.0 - static_cast<double>(j % 3); },
      [](std::int64_t j) { return 300.0 + static_cast<double>(j % 3); },
      [](std::int64_t) { return 0.0; },
      [](std::int64_t j) { return j == 40 ? 400.0 : -400.0; },
      [](std::int64_t j) { return j % 2 == 0 ? 95.0 : -95.0; },
  };
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : kDtypes) {
      Case c = make_case(operation, dtype, {1, 45, 77, 2, 1, 16});
      c.causal = true;
      for (const auto score : kScores) {
        expect_all_pass(c, [&](const tilewise_problem& request) { set_scores(request, score); });
      }
      c = make_case(operation, dtype, {1, 3, 1, 1, 1, 16});
      expect_all_pass(c, [](const tilewise_problem& request) {
        set_scores(request, [](std::int64_t) { return -5.2e5 / 10; });
        set_elements(request.q, [](std::int64_t) { return 10.0; });
      });
    }
  }
}

// Where a row sees one key, O is V, and dP - delta is the difference of their sums. The kernels of
// the CPU and the reference of a device compute both sums in one order, so dS is zero, however
// large the K and Q are that it is multiplied by.
TEST(ExtremeScores, OfASingleKeyGiveADSOfZero) {
  TILEWISE_TRACE_SEED();
  const auto has_one_order = [](const Kernel& kernel) {
    const std::string name = kernel.name;
    return name.rfind("cpu_", 0) == 0 || name == "cuda_reference";
  };
  int runs = 0;
  for (const std::int32_t dtype : kDtypes) {
    for (const std::int64_t value_dim : {16, 23, 64, 129, 256}) {
      const std::int64_t keys = value_dim % 2 == 0 ? 1 : 70;
      Case c = make_case(Operation::kBackward, dtype, {2, 75, keys, 4, 2, 16});
      c.value_dim = value_dim;
      if (keys > 1) c.window_left = c.window_right = 0;
      // Sums that are denormal themselves are rounded to those numbers.
      if (value_dim == 64 && (dtype == TILEWISE_BF16 || dtype == TILEWISE_FP16))
        c.distribution = verify::Distribution::kSubnormal;
      Instance instance(c);
      give_forward_results(instance);
      for (const Kernel* kernel : runnable_kernels(Operation::kBackward, dtype)) {
        if (!has_one_order(*kernel)) continue;
        ++runs;
        run_for_bits(kernel->name, instance);
        for (const auto member : {&tilewise_problem::dq, &tilewise_problem::dk}) {
          for (const double x : verify::numbers_of(instance.request().*member)) {
            ASSERT_EQ(x, 0) << kernel->name << ": " << describe(c);
          }
        }
      }
    }
  }
  if (runs == 0) GTEST_SKIP() << "no such kernel on this machine or target";
}

// The factor of dropout is one number, rounded once: an error that all algorithms share, and a mean
// one where the values have a mean.
TEST(KernelAccuracy, DropoutOfPositiveValuesIsNotBiased) {
  Case c = make_case(Operation::kForward, TILEWISE_BF16, {2, 129, 63, 12, 3, 96});
  c.output_dtype = TILEWISE_FP32;
  c.used = {52, 9};
  c.causal = true;
  c.alignment = TILEWISE_TOP_LEFT;
  c.dropout_p = 0.1;
  c.dropout_seed = 15017494200024109380u;
  c.dropout_offset = 1464368477;
  c.distribution = verify::Distribution::kPositiveV;
  c.seed = 2466076958;
  expect_all_pass(c);
}

// Products of the largest inputs are finite in the arithmetic of the library, so every output is
// finite.
TEST(ExtremeScores, OfTheLargestInputsStayFinite) {
  TILEWISE_TRACE_SEED();
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_BF16, TILEWISE_FP16}) {
      const double largest = dtype == TILEWISE_FP16 ? 65504.0 : 1.3e5;
      Case c = make_case(operation, dtype, {1, 19, 35, 2, 2, 24});
      Instance instance(c);
      const tilewise_problem& request = instance.request();
      const auto sign = [](std::int64_t i) { return i % 5 < 2 ? -1.0 : 1.0; };
      set_elements(request.q, [&](std::int64_t i) { return sign(i) * largest; });
      set_elements(request.k, [&](std::int64_t i) { return sign(i / 24) * largest; });
      give_forward_results(instance);
      for (const Kernel* kernel : kernels_for(instance)) {
        run_for_bits(kernel->name, instance);
        for (const auto member : {&tilewise_problem::out, &tilewise_problem::lse,
                                  &tilewise_problem::dq, &tilewise_problem::dv}) {
          for (const double x : verify::numbers_of(request.*member)) {
            ASSERT_FALSE(std::isnan(x)) << kernel->name << ": " << describe(c);
          }
        }
        for (const double lse : verify::numbers_of(request.lse)) ASSERT_TRUE(std::isfinite(lse));
      }
    }
  }
}

// The products of q and k are below the normal numbers, and the largest scale lifts them to 1e-8.
TEST(ExtremeScores, OfDenormalProductsCountUnderTheLargestScale) {
  TILEWISE_TRACE_SEED();
  for (const Operation operation : kOperations) {
    for (const std::int32_t dtype : {TILEWISE_FP32, TILEWISE_FP64}) {
      const bool fp32 = dtype == TILEWISE_FP32;
      for (const std::int64_t queries : {1, 45}) {
        Case c = make_case(operation, dtype, {1, queries, 77, 2, 1, 16});
        c.scale = fp32 ? 1e30 : 1e300;
        expect_all_pass(c, [&](const tilewise_problem& request) {
          Random random(run_seed());
          const double size = std::ldexp(1.0, fp32 ? -64 : -512);
          set_elements(request.q, [&](std::int64_t) { return size * random.normal(); });
          set_elements(request.k, [&](std::int64_t) { return size * random.normal(); });
        });
      }
    }
  }
}

TEST(EmptySequences, KeepTheAccuracy) {
  TILEWISE_TRACE_SEED();
  const std::vector<std::int64_t> kLengths[] = {{0, 9, 1}, {9, 0, 1}, {9, 1, 0}, {0, 0, 9},
                                                {0, 0, 0}, {1, 1, 1}, {0, 1, 0}};
  for (const Operation operation : kOperations) {
    for (const auto& q_lengths : kLengths) {
      for (const auto& k_lengths : kLengths) {
        for (const bool causal : {false, true}) {
          const std::int32_t dtype = causal ? TILEWISE_FP32 : TILEWISE_BF16;
          Case c = make_case(operation, dtype, {3, 0, 0, 2, 1, 8});
          c.q_packed = c.k_packed = true;
          c.causal = causal;
          c.q_lengths = q_lengths;
          c.k_lengths = k_lengths;
          expect_all_pass(c);
        }
      }
    }
  }
}

// Keys that no query sees have gradients of exactly zero.
TEST(EmptySequences, OfQueriesGiveZeroGradients) {
  Case c = make_case(Operation::kBackward, TILEWISE_FP32, {3, 0, 0, 2, 1, 8});
  c.q_packed = c.k_packed = true;
  c.q_lengths = {4, 0, 3};
  c.k_lengths = {2, 5, 1};
  Instance instance(c);
  give_forward_results(instance);
  for (const Kernel* kernel : runnable_kernels(Operation::kBackward)) {
    run_for_bits(kernel->name, instance);
    for (const auto member : {&tilewise_problem::dk, &tilewise_problem::dv}) {
      const std::vector<double> gradients = verify::numbers_of(instance.request().*member);
      for (std::size_t i = 2 * 8; i < 7 * 8; ++i) EXPECT_EQ(gradients[i], 0) << kernel->name;
      EXPECT_NE(gradients[0], 0) << kernel->name;
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
