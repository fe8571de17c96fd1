// The contents of cu_seqlens, seqused_q, seqused_k and slices may be hostile when a plan runs: they
// are clamped, never trusted.
#include "problem/sequence.h"

#include <gtest/gtest.h>

#include <memory>

#include "problem/sample.h"
#include "problem/validate.h"
#include "verify/random.h"

namespace tilewise::tests {
namespace {

using problem::Sequence;

constexpr std::int64_t kMany = 6;

std::int64_t hostile(verify::Random& random) {
  return random.pick<std::int64_t>({INT64_MIN, INT64_MAX, -1, 0, 1, 2, 3, 4, 5, 6, 1 << 30,
                                    static_cast<std::int64_t>(random.bits())});
}

tilewise_tensor hostile_numbers(Sample& sample, std::int64_t count, verify::Random& random) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(hostile(random));
  tilewise_tensor tensor = sample.numbers(values, {count});
  if (random.chance(0.5)) tensor.dtype = TILEWISE_INT32;  // the same bytes are then other numbers
  return tensor;
}

TEST(Sequences, HostileContentsStayInside) {
  verify::Random random(99);
  for (int step = 0; step < 5000; ++step) {
    Sample sample;
    sample.pack();
    tilewise_problem& p = sample.request;
    p.cu_seqlens_q = hostile_numbers(sample, kMany + 1, random);
    p.cu_seqlens_k = hostile_numbers(sample, kMany + 1, random);
    if (random.chance(0.5)) p.seqused_q = hostile_numbers(sample, kMany, random);
    if (random.chance(0.5)) p.seqused_k = hostile_numbers(sample, kMany, random);
    if (random.chance(0.5)) p.max_seqlen_k = random.between(0, 7);
    problem::Problem problem;
    ASSERT_EQ(problem::make_problem(Operation::kForward, p, &problem), TILEWISE_OK)
        << problem::message();
    Sequence table[kMany];
    problem::fill_sequences(problem, table);
    std::int64_t q_end = 0;
    std::int64_t k_end = 0;
    for (const Sequence& sequence : table) {
      ASSERT_GE(sequence.q_start, q_end);  // sequences are in order and do not overlap
      ASSERT_GE(sequence.k_start, k_end);
      ASSERT_GE(sequence.q_len, 0);
      ASSERT_GE(sequence.k_len, 0);
      q_end = sequence.q_start + sequence.q_len;
      k_end = sequence.k_start + sequence.k_len;
      ASSERT_LE(q_end, kSq);
      ASSERT_LE(k_end, kSk);
      ASSERT_LE(sequence.k_len, problem.max_k);
    }
  }
}

// Valid contents are used unchanged.
TEST(Sequences, ValidContentsAreNotChanged) {
  Sample sample;
  sample.pack();
  sample.request.seqused_q = sample.numbers({1, 1}, {2});
  sample.request.seqused_k = sample.numbers({1, 3}, {2});
  problem::Problem problem;
  ASSERT_EQ(problem::make_problem(Operation::kForward, sample.request, &problem), TILEWISE_OK);
  Sequence table[2];
  problem::fill_sequences(problem, table);
  const std::int64_t expected[2][6] = {{0, 0, 1, 0, 1, 0}, {1, 2, 1, 2, 3, 2}};
  for (int b = 0; b < 2; ++b) {
    EXPECT_EQ(table[b].batch, expected[b][0]);
    EXPECT_EQ(table[b].q_start, expected[b][1]);
    EXPECT_EQ(table[b].q_len, expected[b][2]);
    EXPECT_EQ(table[b].k_start, expected[b][3]);
    EXPECT_EQ(table[b].k_len, expected[b][4]);
    EXPECT_EQ(table[b].diagonal, expected[b][5]);
  }
  sample.request.alignment = TILEWISE_TOP_LEFT;
  ASSERT_EQ(problem::make_problem(Operation::kForward, sample.request, &problem), TILEWISE_OK);
  problem::fill_sequences(problem, table);
  EXPECT_EQ(table[1].diagonal, 0);
}

// The run of a plan clamps hostile contents; every output element is written, and none outside.
TEST(Sequences, ARunOnHostileContentsWritesEveryOutput) {
  verify::Random random(7);
  for (int step = 0; step < 300; ++step) {
    Sample sample;
    const bool sliced = step % 2 == 0;
    if (!sliced) sample.pack();
    tilewise_problem& p = sample.request;
    if (sliced) {
      std::vector<std::int64_t> values;
      for (int i = 0; i < 18; ++i) values.push_back(hostile(random));
      p.slices = sample.numbers(values, {3, 6});
      p.alibi_slopes.rank = 0;
      p.seqused_q = sample.numbers({hostile(random), hostile(random)}, {2});
    } else {
      p.cu_seqlens_q = hostile_numbers(sample, kMany + 1, random);
      p.cu_seqlens_k = hostile_numbers(sample, kMany + 1, random);
    }
    tilewise_plan* plan = nullptr;
    ASSERT_EQ(tilewise_plan_create(TILEWISE_FORWARD, &p, nullptr, &plan), TILEWISE_OK)
        << tilewise_last_error();
    std::size_t bytes = 0;
    std::size_t alignment = 0;
    ASSERT_EQ(tilewise_plan_workspace(plan, &bytes, &alignment), TILEWISE_OK);
    std::vector<char> workspace(bytes + alignment);
    void* start = workspace.data();
    std::size_t room = workspace.size();
    ASSERT_NE(std::align(alignment, bytes, start, room), nullptr);
    EXPECT_EQ(tilewise_plan_run(plan, &p, start, bytes, nullptr), TILEWISE_OK)
        << tilewise_last_error();
    tilewise_plan_destroy(plan);
  }
}

}  // namespace
}  // namespace tilewise::tests
