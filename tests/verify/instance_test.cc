// Instances are reproducible and poisoned, and they detect writes outside of outputs.
#include "verify/instance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "verify/cases.h"
#include "verify/judge.h"

namespace tilewise::verify {
namespace {

Case small_case(Storage storage) {
  Case c;
  c.operation = Operation::kBackward;
  c.batch = 2;
  c.q_len = c.k_len = 5;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = c.value_dim = 3;
  c.storage = storage;
  return c;
}

std::vector<double> values_in(const tilewise_tensor& tensor) {
  std::vector<double> numbers;
  for_each_element(tensor, [&](std::int64_t, std::int64_t offset) {
    numbers.push_back(read_element(tensor, offset));
  });
  return numbers;
}

constexpr Storage kStorages[] = {Storage::kContiguous, Storage::kPadded, Storage::kTransposed,
                                 Storage::kInterleaved};

TEST(Instance, StorageChangesPlacesNotNumbers) {
  const Instance plain(small_case(Storage::kContiguous));
  for (const Storage storage : kStorages) {
    const Instance other(small_case(storage));
    for (const auto member : {&tilewise_problem::q, &tilewise_problem::k, &tilewise_problem::v}) {
      EXPECT_EQ(values_in(plain.request().*member), values_in(other.request().*member))
          << describe(other.description());
    }
  }
}

TEST(Instance, ExpandedKeysHaveStrideZero) {
  const Instance instance(small_case(Storage::kExpanded));
  EXPECT_EQ(instance.request().k.strides[0], 0);
  EXPECT_EQ(instance.request().k.strides[2], 0);
  EXPECT_NE(instance.request().dk.strides[2], 0);
}

TEST(Instance, OutputsArePoisoned) {
  Instance instance(small_case(Storage::kInterleaved));
  instance.prepare(Operation::kBackward);
  for (const double x : values_in(instance.request().dv)) EXPECT_TRUE(std::isnan(x));
  EXPECT_EQ(instance.damage(Operation::kBackward), "");
}

TEST(Instance, WritesToOutputsAreNoDamage) {
  for (const Storage storage : kStorages) {
    Instance instance(small_case(storage));
    instance.prepare(Operation::kBackward);
    const tilewise_tensor& dk = instance.request().dk;
    for_each_element(dk, [&](std::int64_t, std::int64_t at) { write_element(dk, at, 1); });
    EXPECT_EQ(instance.damage(Operation::kBackward), "");
  }
}

TEST(Instance, WritesElsewhereAreDamage) {
  for (const Storage storage : kStorages) {
    const auto damage_by = [&](auto write) {
      Instance instance(small_case(storage));
      instance.prepare(Operation::kBackward);
      write(instance.request());
      return instance.damage(Operation::kBackward);
    };
    const auto before_first = [](const tilewise_problem& p) { write_element(p.dq, -1, 0); };
    const auto behind_last = [](const tilewise_problem& p) {
      std::int64_t last = 0;
      for_each_element(p.dv, [&](std::int64_t, std::int64_t at) { last = std::max(last, at); });
      write_element(p.dv, last + 1, 0);
    };
    const auto to_input = [](const tilewise_problem& p) { write_element(p.v, 0, 12345); };
    const auto to_out = [](const tilewise_problem& p) { write_element(p.out, 0, 1); };
    EXPECT_NE(damage_by(before_first), "");
    EXPECT_NE(damage_by(behind_last), "");
    EXPECT_NE(damage_by(to_input), "");
    EXPECT_NE(damage_by(to_out), "") << "out is an input of backward";
  }
}

TEST(Cases, RandomCasesAreValidAndReproducible) {
  Random random(3);
  Random again(3);
  for (int i = 0; i < 200; ++i) {
    const Operation operation = i % 2 == 0 ? Operation::kForward : Operation::kBackward;
    const Case one = random_case(operation, TILEWISE_FP32, random);
    EXPECT_EQ(describe(one), describe(random_case(operation, TILEWISE_FP32, again)));
    const Instance instance(one);
    plan::Plan plan;
    EXPECT_EQ(plan::make_plan(operation, instance.request(), {}, &plan), TILEWISE_OK)
        << problem::message() << "\n  " << describe(one);
  }
}

// A judge must not pass a kernel whose answer is wrong: here, the answer for other numbers.
TEST(Judge, RefusesAWrongAnswer) {
  Case c = small_case(Storage::kContiguous);
  c.operation = Operation::kForward;
  Judge judge(c);
  EXPECT_EQ(judge.judge("flash2").result, Verdict::kPassed);
  const tilewise_tensor& q = judge.instance().request().q;
  write_element(q, 0, read_element(q, 0) + 1e-2);
  const Verdict verdict = judge.judge("flash2");
  EXPECT_EQ(verdict.result, Verdict::kFailed);
  EXPECT_NE(verdict.text.find(describe(c)), std::string::npos);
}

}  // namespace
}  // namespace tilewise::verify
