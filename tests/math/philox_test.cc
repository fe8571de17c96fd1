// Philox-4x32-10 against the known-answer vectors that its authors publish (Random123 1.14,
// tests/kat_vectors), and the dropout rule on top of it.
#include "math/philox.h"

#include <gtest/gtest.h>

namespace tilewise::math {
namespace {

struct KnownAnswer {
  std::uint32_t counter[4];
  std::uint32_t key[2];
  std::uint32_t answer[4];
};

constexpr KnownAnswer kKnownAnswers[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

TEST(Philox, MatchesTheKnownAnswersOfItsAuthors) {
  for (const KnownAnswer& known : kKnownAnswers) {
    const std::uint64_t key = std::uint64_t{known.key[1]} << 32 | known.key[0];
    const Philox4 result = philox_4x32_10(
        {{known.counter[0], known.counter[1], known.counter[2], known.counter[3]}}, key);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(result.word[i], known.answer[i]);
  }
}

// The counter is (column/4, row, head, offset), the word is column % 4, and a word is kept iff word
// >= round(p * 2^32).
TEST(Philox, DropoutFollowsTheSemantics) {
  const DropoutRule rule = dropout_rule(0.3, 0x299f31d0a4093822u, 17);
  EXPECT_EQ(rule.threshold, 1288490189u);
  EXPECT_DOUBLE_EQ(rule.keep_scale, 1 / 0.7);
  for (std::int64_t column = 0; column < 64; ++column) {
    const Philox4 words =
        philox_4x32_10({{static_cast<std::uint32_t>(column / 4), 5, 3, 17}}, rule.seed);
    EXPECT_EQ(dropout_keeps(rule, 3, 5, column), words.word[column % 4] >= rule.threshold);
  }
}

TEST(Philox, DropoutKeepsItsShare) {
  constexpr int kRows = 200;
  constexpr int kColumns = 500;
  for (const double p : {0.0, 0.1, 0.5, 0.9}) {
    const DropoutRule rule = dropout_rule(p, 42, 0);
    int kept = 0;
    for (int row = 0; row < kRows; ++row) {
      for (int column = 0; column < kColumns; ++column) {
        kept += dropout_keeps(rule, 1, row, column) ? 1 : 0;
      }
    }
    EXPECT_NEAR(static_cast<double>(kept) / (kRows * kColumns), 1 - p, 0.01) << p;
  }
}

TEST(Philox, NoDropoutKeepsAll) {
  const DropoutRule rule = dropout_rule(0, 1, 2);
  EXPECT_EQ(rule.threshold, 0u);
  EXPECT_EQ(rule.keep_scale, 1);
}

}  // namespace
}  // namespace tilewise::math
