// The options `accumulate` and `parts`: what is refused, and where a part lies in its whole.
#include <gtest/gtest.h>

#include "problem/sample.h"
#include "problem/sequence.h"
#include "problem/validate.h"
#include "verify/random.h"

namespace tilewise::tests {
namespace {

using problem::kMostOfWhole;
using problem::Sequence;

struct PartFault {
  const char* name;
  Operation operation;
  std::function<void(Sample&)> alter;
  std::vector<const char*> message;  // parts that must appear; the message begins with the first
};

void PrintTo(const PartFault& fault, std::ostream* out) { *out << fault.name; }

void make_bf16(tilewise_problem& p) {
  for (const auto member :
       {&tilewise_problem::q, &tilewise_problem::k, &tilewise_problem::v, &tilewise_problem::out,
        &tilewise_problem::dout, &tilewise_problem::dq, &tilewise_problem::dk,
        &tilewise_problem::dv, &tilewise_problem::bias, &tilewise_problem::dbias})
    (p.*member).dtype = TILEWISE_BF16;
}

// A bf16 problem whose outputs accumulate in fp32, but for one of them.
std::function<void(Sample&)> narrow(tilewise_tensor tilewise_problem::*output) {
  return [output](Sample& sample) {
    tilewise_problem& p = sample.request;
    make_bf16(p);
    for (const auto member : {&tilewise_problem::out, &tilewise_problem::dq, &tilewise_problem::dk,
                              &tilewise_problem::dv, &tilewise_problem::dbias})
      (p.*member).dtype = TILEWISE_FP32;
    (p.*output).dtype = TILEWISE_BF16;
    p.accumulate = 1;
  };
}

std::function<void(Sample&)> with_parts(std::vector<std::int64_t> numbers) {
  return [numbers](Sample& sample) { sample.request.parts = sample.numbers(numbers, {kB, 4}); };
}

const PartFault kPartFaults[] = {
    {"flag",
     kForward,
     [](Sample& s) { s.request.accumulate = 2; },
     {"accumulate", "is 2", "0 or 1"}},
    {"reserved", kForward, [](Sample& s) { s.request.reserved2 = 5; }, {"reserved2", "is 5", "0"}},
    {"lse",
     kForward,
     [](Sample& s) {
       s.request.accumulate = 1;
       s.request.lse = {};
     },
     {"lse", "missing", "accumulate"}},
    {"out",
     kForward,
     narrow(&tilewise_problem::out),
     {"out", "bf16", "must be fp32", "accumulate"}},
    {"dq", kBackward, narrow(&tilewise_problem::dq), {"dq", "bf16", "must be fp32", "accumulate"}},
    {"dk", kBackward, narrow(&tilewise_problem::dk), {"dk", "bf16", "must be fp32", "accumulate"}},
    {"dv", kBackward, narrow(&tilewise_problem::dv), {"dv", "bf16", "must be fp32", "accumulate"}},
    {"dbias", kBackward, narrow(&tilewise_problem::dbias), {"dbias", "bf16", "must be fp32"}},
    {"slices",
     kForward,
     [](Sample& s) {
       s.request.parts = s.numbers({0, 0, 0, 0, 1, 0, 0, 0}, {kB, 4});
       s.request.slices = s.numbers({0, 3, 0, 5, 0}, {1, 5});
     },
     {"parts", "slices"}},
    {"dtype",
     kForward,
     [](Sample& s) {
       s.request.parts = s.tensor(TILEWISE_INT32, {kB, 4});
     },
     {"parts", "dtype is int32", "must be int64"}},
    {"columns",
     kForward,
     [](Sample& s) {
       s.request.parts = s.tensor(TILEWISE_INT64, {kB, 3});
     },
     {"parts", "shape is (2, 3)", "(2, 4)"}},
    {"rows",
     kBackward,
     [](Sample& s) {
       s.request.parts = s.tensor(TILEWISE_INT64, {kB + 1, 4});
     },
     {"parts", "shape is (3, 4)", "(2, 4)"}},
    {"number", kForward, with_parts({0, 0, 0, 0, -1, 0, 0, 0}), {"parts[1]", "number is -1", "0"}},
    {"row", kForward, with_parts({0, -5, 0, 0, 0, 0, 0, 0}), {"parts[0]", "row is -5", "0"}},
    {"key",
     kBackward,
     with_parts({0, 0, kMostOfWhole + 1, 0, 0, 0, 0, 0}),
     {"parts[0]", "key is 576460752303423489", "576460752303423488"}},
    {"d",
     kForward,
     with_parts({0, 0, 0, INT64_MIN, 0, 0, 0, 0}),
     {"parts[0]", "d is -9223372036854775808", "-576460752303423488"}},
};

class PartsFault : public testing::TestWithParam<PartFault> {};

TEST_P(PartsFault, IsRefusedByName) {
  Sample sample;
  GetParam().alter(sample);
  const std::string before = sample.memory();
  EXPECT_EQ(run(GetParam().operation, sample.request), TILEWISE_INVALID_ARGUMENT);
  const std::string message = tilewise_last_error();
  EXPECT_EQ(message.rfind(GetParam().message.front(), 0), 0u) << message;
  for (const char* part : GetParam().message)
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" not in: " << message;
  EXPECT_EQ(sample.memory(), before);  // nothing was written
}

INSTANTIATE_TEST_SUITE_P(Parts, PartsFault, testing::ValuesIn(kPartFaults),
                         [](const auto& fault) { return fault.param.name; });

// The sample accumulates, so that each fault above is refused because of its one change.
TEST(Parts, TheSampleAccumulates) {
  for (const Operation operation : {kForward, kBackward}) {
    Sample sample;
    sample.request.accumulate = 1;
    with_parts({3, 7, 4, 2, 0, 0, 9, -3})(sample);
    EXPECT_EQ(run(operation, sample.request), TILEWISE_OK) << tilewise_last_error();
  }
}

TEST(Parts, APlanIsBoundToThem) {
  Sample sample;
  tilewise_plan* plan = nullptr;
  ASSERT_EQ(tilewise_plan_create(TILEWISE_FORWARD, &sample.request, nullptr, &plan), TILEWISE_OK);
  tilewise_problem other = sample.request;
  other.accumulate = 1;
  EXPECT_EQ(tilewise_plan_run(plan, &other, nullptr, 0, nullptr), TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(tilewise_last_error(), "accumulate: differs from what the plan was made for");
  other = sample.request;
  other.parts = sample.numbers({0, 0, 0, 0, 0, 0, 0, 0}, {kB, 4});
  EXPECT_EQ(tilewise_plan_run(plan, &other, nullptr, 0, nullptr), TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(tilewise_last_error(), "parts: differs from what the plan was made for");
  tilewise_plan_destroy(plan);
}

// A row of a part sees the keys that it sees in the whole, for any window and place of the part.
TEST(Parts, SeeTheKeysOfTheWhole) {
  verify::Random random(5);
  for (int step = 0; step < 3000; ++step) {
    const std::int64_t far = random.pick<std::int64_t>({30, 1 << 20, std::int64_t{1} << 50});
    const std::int64_t row = random.between(0, far);
    const std::int64_t key = random.between(0, far);
    // The offset of the diagonal is often such that the window lies in the part.
    const std::int64_t d = key - row + random.between(-12, 12);
    Sample sample;
    sample.request.window_left = random.pick<std::int64_t>({-1, 0, 2, 100, far, INT64_MAX});
    sample.request.window_right = random.pick<std::int64_t>({-1, 0, 2, 100, far, INT64_MAX});
    with_parts({0, row, key, d, 1, row, key, d})(sample);
    problem::Problem problem;
    ASSERT_EQ(problem::make_problem(kForward, sample.request, &problem), TILEWISE_OK);
    Sequence table[kB];
    problem::fill_sequences(problem, table);
    math::Band band;
    ASSERT_EQ(problem::sequence_bands(problem, table[1], 0, &band), 1);
    for (std::int64_t i = 0; i < kSq; ++i) {
      const math::KeyRange seen = math::visible_keys(band, i);
      for (std::int64_t j = 0; j < kSk; ++j) {
        // In 128 bits, because an unbounded window is wider than int64.
        const __int128 distance = static_cast<__int128>(j + key) - (i + row + d);
        const bool left =
            problem.window_left < 0 || distance >= -static_cast<__int128>(problem.window_left);
        const bool right = problem.window_right < 0 || distance <= problem.window_right;
        ASSERT_EQ(j >= seen.begin && j < seen.end, left && right)
            << "row " << i << " key " << j << " distance " << static_cast<std::int64_t>(distance);
      }
    }
  }
}

TEST(Parts, MoveTheCountersOfDropout) {
  Sample sample;
  with_parts({5, 70, 9, 0, std::int64_t{1} << 58, 3, 2, 1})(sample);
  problem::Problem problem;
  ASSERT_EQ(problem::make_problem(kForward, sample.request, &problem), TILEWISE_OK);
  const problem::DropoutOrigin first = problem::dropout_origin(problem, 0, 3);
  EXPECT_EQ(first.head_index, 5 * kH + 3);
  EXPECT_EQ(first.row, 70);
  EXPECT_EQ(first.key, 9);
  // The low 32 bits of 2^58 * H + head.
  EXPECT_EQ(static_cast<std::uint32_t>(problem::dropout_origin(problem, 1, 2).head_index), 2u);
  problem.parts = {};
  const problem::DropoutOrigin whole = problem::dropout_origin(problem, 1, 3);
  EXPECT_EQ(whole.head_index, kH + 3);
  EXPECT_EQ(whole.row, 0);
  EXPECT_EQ(whole.key, 0);
}

TEST(Parts, HostileOnesAreClamped) {
  verify::Random random(6);
  for (int step = 0; step < 3000; ++step) {
    Sample sample;
    std::vector<std::int64_t> numbers;
    for (int i = 0; i < kB * 4; ++i) {
      numbers.push_back(random.pick<std::int64_t>(
          {INT64_MIN, INT64_MAX, -1, 0, 5, static_cast<std::int64_t>(random.bits())}));
    }
    with_parts(numbers)(sample);
    sample.request.window_left = random.pick<std::int64_t>({-1, 0, 3, INT64_MAX});
    sample.request.window_right = random.pick<std::int64_t>({-1, 0, 3, INT64_MAX});
    problem::Problem problem;
    ASSERT_EQ(problem::make_problem(kForward, sample.request, &problem), TILEWISE_OK);
    Sequence table[kB];
    problem::fill_sequences(problem, table);
    for (const Sequence& sequence : table) {
      const problem::Part part = problem::part_of(problem, sequence.batch);
      for (const std::int64_t number : {part.number, part.row, part.key}) {
        ASSERT_GE(number, 0);
        ASSERT_LE(number, kMostOfWhole);
      }
      ASSERT_EQ(sequence.diagonal, part.row + part.diagonal - part.key);
      math::Band band;
      problem::sequence_bands(problem, sequence, 0, &band);
      const math::KeyRange keys = math::tile_keys(band, 0, kSq);
      ASSERT_GE(keys.begin, 0);
      ASSERT_LE(keys.end, kSk);
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
