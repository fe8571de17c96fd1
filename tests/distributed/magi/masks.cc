#include "distributed/magi/masks.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "problem/status.h"

namespace tilewise::tests {
namespace {

// The lengths of documents: most are short, some are long.
std::vector<std::int64_t> document_starts(std::int64_t tokens, verify::Random& random) {
  std::vector<std::int64_t> starts = {0};
  while (starts.back() < tokens) {
    const std::int64_t share = random.pick({256, 64, 64, 32, 16, 8});
    const std::int64_t length = random.between(tokens / share / 2 + 1, tokens / share + 1);
    starts.push_back(std::min(tokens, starts.back() + length));
  }
  return starts;
}

std::vector<Slice> documents(const std::vector<std::int64_t>& starts, std::int64_t kind) {
  std::vector<Slice> slices;
  for (std::size_t d = 0; d + 1 < starts.size(); ++d) {
    slices.push_back({starts[d], starts[d + 1], starts[d], starts[d + 1], kind, -1});
  }
  return slices;
}

// Blocks of a document see its earlier blocks and themselves.
std::vector<Slice> block_causal(const std::vector<std::int64_t>& starts, std::int64_t block) {
  std::vector<Slice> slices;
  for (std::size_t d = 0; d + 1 < starts.size(); ++d) {
    for (std::int64_t begin = starts[d]; begin < starts[d + 1]; begin += block) {
      const std::int64_t end = std::min(begin + block, starts[d + 1]);
      slices.push_back({begin, end, starts[d], end, 0, -1});
    }
  }
  return slices;
}

// A window of `left` keys back and the query itself: a causal head and a band.
std::vector<Slice> window(std::int64_t tokens, std::int64_t left) {
  return {{0, left, 0, left, 1, -1}, {left, tokens, 0, tokens, 3, -1}};
}

// A question that all answers see; an answer sees itself too.
std::vector<Slice> shared_question(std::int64_t tokens, std::int64_t answers) {
  const std::int64_t question = tokens / 4;
  std::vector<Slice> slices = {{0, question, 0, question, 1, -1},
                               {question, tokens, 0, question, 0, -1}};
  for (std::int64_t a = 0; a < answers; ++a) {
    const std::int64_t begin = question + (tokens - question) * a / answers;
    const std::int64_t end = question + (tokens - question) * (a + 1) / answers;
    slices.push_back({begin, end, begin, end, 1, -1});
  }
  return slices;
}

std::vector<Slice> global_and_window(std::int64_t tokens, std::int64_t left, std::int64_t global) {
  std::vector<Slice> slices = window(tokens, left);  // overlaps the global keys at the start
  slices.push_back({0, tokens, 0, global, 1, -1});
  slices.push_back({global, tokens, 0, global, 0, -1});
  return slices;
}

}  // namespace

void BooleanMask::show(const std::vector<Slice>& slices) {
  for (const Slice& s : slices) {
    const std::int64_t d = (s.k_end - s.k_begin) - (s.q_end - s.q_begin);
    for (std::int64_t q = s.q_begin; q < s.q_end; ++q) {
      for (std::int64_t k = s.k_begin; k < s.k_end; ++k) {
        const std::int64_t i = q - s.q_begin;
        const std::int64_t j = k - s.k_begin;
        if ((s.kind == 1 || s.kind == 3) && j > i + d) continue;
        if ((s.kind == 2 || s.kind == 3) && j < i) continue;
        for (std::int64_t h = 0; h < heads_; ++h) {
          if (s.head == -1 || s.head == h) at(h, q, k) = 1;
        }
      }
    }
  }
}

std::int64_t BooleanMask::area(std::int64_t q_begin, std::int64_t q_end) {
  std::int64_t count = 0;
  for (std::int64_t h = 0; h < heads_; ++h) {
    for (std::int64_t q = q_begin; q < q_end; ++q) {
      for (std::int64_t k = 0; k < k_len_; ++k) count += at(h, q, k);
    }
  }
  return count;
}

Mask SliceList::mask() const {
  Mask result;
  EXPECT_EQ(distributed::magi::mask_of_slices(slices, q_len, k_len, heads, &result), TILEWISE_OK)
      << problem::message();
  return result;
}

BooleanMask SliceList::cells() const {
  BooleanMask result(heads, q_len, k_len);
  result.show(slices);
  return result;
}

std::string SliceList::text() const {
  std::string result = "q_len " + std::to_string(q_len) + " k_len " + std::to_string(k_len) +
                       " heads " + std::to_string(heads) + " slices";
  for (const Slice& s : slices) {
    result += " (";
    for (const std::int64_t number : {s.q_begin, s.q_end, s.k_begin, s.k_end, s.kind, s.head}) {
      result += std::to_string(number) + ",";
    }
    result.back() = ')';
  }
  return result;
}

SliceList random_slices(verify::Random& random, std::int64_t most, std::int64_t longest) {
  SliceList list = {random.between(0, longest), random.between(0, longest), 1, {}};
  if (random.chance(0.6)) list.k_len = list.q_len;
  const bool named = random.chance(0.3);
  if (named) list.heads = random.between(1, 3);
  for (std::int64_t count = random.between(0, most); count > 0; --count) {
    Slice slice = {0, 0, 0, 0, random.between(0, 3), -1};
    slice.q_begin = random.between(0, list.q_len);
    slice.q_end = random.between(slice.q_begin, list.q_len);
    slice.k_begin = random.between(0, list.k_len);
    slice.k_end = random.between(slice.k_begin, list.k_len);
    if (named) slice.head = random.between(-1, list.heads - 1);
    list.slices.push_back(slice);
  }
  return list;
}

std::vector<Family> mask_families(std::int64_t tokens, verify::Random& random) {
  const std::vector<std::int64_t> starts = document_starts(tokens, random);
  const std::int64_t left = std::min<std::int64_t>(tokens / 16, 4096);
  const auto whole = [&](std::vector<Slice> slices) {
    return SliceList{tokens, tokens, 1, std::move(slices)};
  };
  return {{"full", whole({{0, tokens, 0, tokens, 0, -1}})},
          {"causal", whole({{0, tokens, 0, tokens, 1, -1}})},
          {"documents", whole(documents(starts, 0))},
          {"causal documents", whole(documents(starts, 1))},
          {"block-causal documents",
           whole(block_causal(starts, std::max<std::int64_t>(tokens / 512, 1)))},
          {"window", whole(window(tokens, left))},
          {"shared question", whole(shared_question(tokens, 8))},
          {"global and window", whole(global_and_window(tokens, left, tokens / 256))}};
}

}  // namespace tilewise::tests
