// Attention over ranks that are threads: the results of one machine, for any list of slices; what
// is sent; failures.
#include "distributed/magi/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "distributed/magi/masks.h"
#include "distributed/magi/ranks.h"
#include "support/seed.h"
#include "verify/accuracy.h"
#include "verify/instance.h"
#include "verify/oracle.h"
#include "verify/plain.h"

namespace tilewise::tests {
namespace {

using namespace distributed::magi;
using verify::Case;
using verify::Operation;
using verify::Random;

Case random_case(Random& random, std::int32_t dtype, std::int64_t longest) {
  const SliceList list = random_slices(random, random.pick({1, 4, 12}), longest);
  Case result;
  result.operation = Operation::kBackward;  // its tensors are those of both operations
  result.dtype = dtype;
  result.q_packed = result.k_packed = true;
  result.q_len = list.q_len;
  result.k_len = list.k_len;
  const std::int64_t group = random.pick({1, 1, 2, 3});
  result.slice_heads = list.heads > 1;
  // Slices that name heads are of list.heads heads.
  result.kv_heads = result.slice_heads ? 1 : random.between(1, 2);
  result.heads = result.slice_heads ? list.heads : result.kv_heads * group;
  result.head_dim = random.pick({1, 4, 16, 24});
  result.value_dim = random.chance(0.5) ? result.head_dim : random.pick({1, 8, 20});
  for (const Slice& s : list.slices) {
    result.slices.push_back(
        {s.q_begin, s.q_end, s.k_begin, s.k_end, s.kind, result.slice_heads ? s.head : -1});
  }
  if (result.slices.empty()) result.slices.push_back({0, 0, 0, 0, 0, -1});
  result.storage = random.pick({verify::Storage::kContiguous, verify::Storage::kPadded});
  result.sink = random.chance(0.4);
  result.softcap = random.chance(0.3) ? 5 : 0;
  result.scale = random.chance(0.3) ? 0.7 : TILEWISE_DEFAULT_SCALE;
  result.dlse = random.chance(0.3);
  const unsigned all = verify::kAllGradients;
  result.gradients = random.pick({all, all, all & ~verify::kDK, all & ~verify::kDV,
                                  unsigned{verify::kDQ}, unsigned{verify::kDV}});
  result.seed = random.bits();
  return result;
}

PlanOptions random_options(Random& random) {
  return {random.between(1, 8), random.between(0, 9), random.between(0, 4),
          random.pick({Dealing::kAutomatic, Dealing::kInOrder, Dealing::kByArea})};
}

std::vector<double> elements(const tilewise_tensor& tensor) {
  std::vector<double> result;
  verify::for_each_element(tensor, [&](std::int64_t, std::int64_t offset) {
    result.push_back(verify::read_element(tensor, offset));
  });
  return result;
}

void expect_close(const char* name, const tilewise_tensor& result,
                  const tilewise_tensor& expected) {
  const std::vector<double> own = elements(result);
  const std::vector<double> other = elements(expected);
  ASSERT_EQ(own.size(), other.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (own[i] == other[i]) continue;  // infinities too
    ASSERT_LE(std::fabs(own[i] - other[i]), 1e-12 * std::max(1.0, std::fabs(other[i])))
        << name << " " << i;
  }
}

// Compares the outputs of an operation.
void expect_same_bits(Operation operation, const tilewise_problem& a, const tilewise_problem& b) {
  for (const problem::NamedTensor& tensor : problem::kTensors) {
    if (tensor.role(operation) != problem::Role::kOutput) continue;
    ASSERT_EQ(elements(a.*tensor.member), elements(b.*tensor.member)) << tensor.name;
  }
}

void expect_accurate(Operation operation, const tilewise_problem& result,
                     const tilewise_problem& oracle) {
  std::vector<std::unique_ptr<verify::Plain>> runs;
  std::vector<const tilewise_problem*> plain;
  for (verify::SumOrder order = 0; order < verify::kSumOrders; ++order) {
    runs.push_back(std::make_unique<verify::Plain>(result, order));
    runs.back()->run(operation);
    plain.push_back(&runs.back()->results());
  }
  for (const verify::TensorReport& report :
       verify::check_accuracy(operation, result, oracle, plain, {})) {
    ASSERT_TRUE(report.passed) << report.name << ": " << report.reason;
  }
}

// Runs both passes of a case in fp64 on ranks and on one rank.
void expect_results_of_one_rank(const Case& description, const PlanOptions& options,
                                bool overlaps) {
  verify::Instance whole(description);
  verify::Instance single(description);
  const Plan plan = plan_of(description, options);
  const Plan one = plan_of(description, {.ranks = 1});
  for (const Operation operation : {Operation::kForward, Operation::kBackward}) {
    whole.prepare(operation);
    single.prepare(operation);
    ASSERT_NO_FATAL_FAILURE(run_ranks(operation, whole.request(), plan, overlaps));
    ASSERT_NO_FATAL_FAILURE(run_ranks(operation, single.request(), one, false));
    ASSERT_EQ(whole.damage(operation), "");
    for (const problem::NamedTensor& tensor : problem::kTensors) {
      if (tensor.role(operation) != problem::Role::kOutput) continue;
      ASSERT_NO_FATAL_FAILURE(expect_close(tensor.name, whole.request().*tensor.member,
                                           single.request().*tensor.member));
    }
  }
}

// Distributed forward and backward in fp64 against one rank.
TEST(MagiAttention, AnyNumberOfRanksGivesTheResultsOfOne) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int step = 0; step < 150; ++step) {
    const Case description = random_case(random, TILEWISE_FP64, 40);
    const PlanOptions options = random_options(random);
    SCOPED_TRACE(describe(description) + " ranks " + std::to_string(options.ranks) + " chunk " +
                 std::to_string(options.chunk_rows) + " stages " + std::to_string(options.stages));
    ASSERT_NO_FATAL_FAILURE(expect_results_of_one_rank(description, options, random.chance(0.5)));
  }
}

// The masks that MagiAttention names, with the automatic chunks and stages.
TEST(MagiAttention, FamiliesOfMasksGiveTheResultsOfOneRank) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (const Family& family : mask_families(700, random)) {
    Case description;
    description.operation = Operation::kBackward;
    description.dtype = TILEWISE_FP64;
    description.q_packed = description.k_packed = true;
    description.q_len = description.k_len = 700;
    description.heads = 2;
    description.head_dim = 8;
    description.value_dim = 4;
    for (const Slice& s : family.list.slices)
      description.slices.push_back({s.q_begin, s.q_end, s.k_begin, s.k_end, s.kind, -1});
    for (const std::int64_t ranks : {2, 5, 8}) {
      SCOPED_TRACE(family.name + " on " + std::to_string(ranks) + " ranks");
      ASSERT_NO_FATAL_FAILURE(
          expect_results_of_one_rank(description, {.ranks = ranks, .chunk_rows = 32}, true));
    }
  }
}

// One rank has the bits of the library's own run.
TEST(MagiAttention, OneRankHasTheBitsOfOneCall) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int step = 0; step < 20; ++step) {
    const Case description = random_case(random, random.pick({TILEWISE_FP32, TILEWISE_BF16}), 40);
    verify::Instance whole(description);
    verify::Instance single(description);
    for (const Operation operation : {Operation::kForward, Operation::kBackward}) {
      whole.prepare(operation);
      single.prepare(operation);
      ASSERT_NO_FATAL_FAILURE(
          run_ranks(operation, whole.request(), plan_of(description, {.ranks = 1}), false));
      ASSERT_EQ(plan::run_once(operation, single.request(), nullptr), TILEWISE_OK)
          << problem::message();
      ASSERT_NO_FATAL_FAILURE(expect_same_bits(operation, whole.request(), single.request()));
    }
  }
}

// Without an lse of the caller, the stages keep it in the workspace.
TEST(MagiAttention, TheLseIsOptional) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int step = 0; step < 20; ++step) {
    const Case description = random_case(random, TILEWISE_FP32, 40);
    const Plan plan = plan_of(description, random_options(random));
    verify::Instance with(description);
    verify::Instance without(description);
    with.prepare(Operation::kForward);
    without.prepare(Operation::kForward);
    tilewise_problem request = without.request();
    request.lse = {};
    ASSERT_NO_FATAL_FAILURE(run_ranks(Operation::kForward, with.request(), plan, false));
    ASSERT_NO_FATAL_FAILURE(run_ranks(Operation::kForward, request, plan, false));
    const tilewise_tensor& out = request.out;
    verify::for_each_element(out, [&](std::int64_t, std::int64_t offset) {
      ASSERT_EQ(verify::read_element(out, offset),
                verify::read_element(with.request().out, offset));
    });
  }
}

// The accuracy rule of the library holds for any number of ranks, and two runs have the same bits.
TEST(MagiAttention, RoundedTypesKeepTheAccuracyRule) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed() + 1);
  for (int step = 0; step < 60; ++step) {
    Case description =
        random_case(random, random.pick({TILEWISE_BF16, TILEWISE_FP16, TILEWISE_FP32}), 60);
    if (random.chance(0.3)) description.output_dtype = TILEWISE_FP32;
    const PlanOptions options = random_options(random);
    SCOPED_TRACE(describe(description) + " ranks " + std::to_string(options.ranks));
    verify::Instance whole(description);
    verify::Instance again(description);
    verify::Oracle oracle(whole.request());
    const Plan plan = plan_of(description, options);
    for (const Operation operation : {Operation::kForward, Operation::kBackward}) {
      oracle.run(operation);
      if (operation == Operation::kBackward) {
        whole.set_forward_results(oracle.results());
        again.set_forward_results(oracle.results());
      }
      whole.prepare(operation);
      again.prepare(operation);
      ASSERT_NO_FATAL_FAILURE(run_ranks(operation, whole.request(), plan, true));
      ASSERT_NO_FATAL_FAILURE(run_ranks(operation, again.request(), plan, false));
      ASSERT_NO_FATAL_FAILURE(expect_accurate(operation, whole.request(), oracle.results()));
      ASSERT_NO_FATAL_FAILURE(expect_same_bits(operation, whole.request(), again.request()));
    }
  }
}

// Every byte that travels is a row that a rank needs: K and V once, and dK and dV of the same rows.
TEST(MagiAttention, BytesAreThoseOfTheNeededRows) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed() + 2);
  for (int step = 0; step < 40; ++step) {
    Case description = random_case(random, TILEWISE_BF16, 60);
    description.sink = false;
    const Plan plan = plan_of(description, random_options(random));
    verify::Instance whole(description);
    whole.prepare(Operation::kForward);
    const std::int64_t columns =
        description.kv_heads * (description.head_dim + description.value_dim);
    // Before anything else every rank compares its problem with the others.
    const std::int64_t pairs = plan.ranks * (plan.ranks - 1);
    const std::int64_t compared =
        pairs * static_cast<std::int64_t>(sizeof(distributed::Fingerprint));
    Sent sent;
    ASSERT_NO_FATAL_FAILURE(run_ranks(Operation::kForward, whole.request(), plan, true, &sent));
    EXPECT_EQ(sent.bytes - compared, plan.remote_rows() * columns * 2);
    sent = {};
    whole.prepare(Operation::kBackward);
    ASSERT_NO_FATAL_FAILURE(run_ranks(Operation::kBackward, whole.request(), plan, true, &sent));
    const bool returns = (description.gradients & (verify::kDK | verify::kDV)) != 0;
    EXPECT_EQ(sent.bytes - compared, plan.remote_rows() * columns * (2 + (returns ? 4 : 0)));
    EXPECT_LE(sent.messages, (2 * plan.stages + 1) * pairs);
  }
}

}  // namespace
}  // namespace tilewise::tests
