// Philox-4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random
// numbers: as easy as 1, 2, 3" (SC 2011), and the dropout rule on top of it. Every back end gets
// the same bits, whatever the order of evaluation.
#pragma once

#include "math/config.h"

namespace tilewise::math {

struct Philox4 {
  std::uint32_t word[4];
};

TILEWISE_INLINE Philox4 philox_4x32_10(Philox4 counter, std::uint64_t key) {
  std::uint32_t key0 = static_cast<std::uint32_t>(key);
  std::uint32_t key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter.word[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {{static_cast<std::uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0,
                static_cast<std::uint32_t>(product1),
                static_cast<std::uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1,
                static_cast<std::uint32_t>(product0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

struct DropoutRule {
  std::uint64_t seed;
  std::uint32_t offset;
  std::uint64_t threshold;  // round(p * 2^32): a word at or above it is kept
  double keep_scale;        // 1 / (1 - p)
};

TILEWISE_INLINE DropoutRule dropout_rule(double p, std::uint64_t seed, std::uint64_t offset) {
  return {seed, static_cast<std::uint32_t>(offset),
          static_cast<std::uint64_t>(p * 4294967296.0 + 0.5), 1.0 / (1.0 - p)};
}

// Returns the four random words of columns 4*column_group .. 4*column_group + 3 of a row. Row and
// column are local to the sequence; head_index = batch * H + head.
TILEWISE_INLINE Philox4 dropout_words(const DropoutRule& rule, std::int64_t head_index,
                                      std::int64_t row, std::int64_t column_group) {
  return philox_4x32_10({{static_cast<std::uint32_t>(column_group), static_cast<std::uint32_t>(row),
                          static_cast<std::uint32_t>(head_index), rule.offset}},
                        rule.seed);
}

TILEWISE_INLINE bool dropout_keeps(const DropoutRule& rule, std::int64_t head_index,
                                   std::int64_t row, std::int64_t column) {
  const Philox4 words = dropout_words(rule, head_index, row, column / 4);
  // The word is selected, not indexed: indexing an array of registers would move it to local memory
  // on a GPU.
  std::uint32_t word = words.word[0];
  for (int c = 1; c < 4; ++c) word = column % 4 == c ? words.word[c] : word;
  return word >= rule.threshold;
}

}  // namespace tilewise::math
