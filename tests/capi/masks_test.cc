// masks.hpp: every constructor against what it says in words, over random lengths; attention with a
// list is that with the boolean mask; bad input.
#include <gtest/gtest.h>
#include <tilewise/masks.hpp>

#include <array>
#include <cmath>
#include <functional>
#include <random>

#include "support/seed.h"

namespace tilewise::masks {
namespace {

using Sees = std::function<bool(std::int64_t, std::int64_t)>;
using Numbers = std::vector<std::int64_t>;

// What is tested of one list: its mask in words, and the most slices that it may have.
struct Made {
  const char* name;
  Slices slices;
  std::int64_t rows;
  std::int64_t keys;
  std::size_t most;
  Sees sees;
};

// The definition of docs/semantics.md.
bool shows(const Slice& slice, std::int64_t i, std::int64_t j) {
  if (i < slice.q0 || i >= slice.q1 || j < slice.k0 || j >= slice.k1) return false;
  const std::int64_t row = i - slice.q0;
  const std::int64_t key = j - slice.k0;
  const std::int64_t d = (slice.k1 - slice.k0) - (slice.q1 - slice.q0);
  const bool below = key <= row + d;
  const bool above = key >= row;
  const std::array<bool, 4> visible = {true, below, above, below && above};
  return visible[static_cast<std::size_t>(slice.kind)];
}

bool shows_a_key(const Slice& slice, std::int64_t row) {
  for (std::int64_t j = slice.k0; j < slice.k1; ++j) {
    if (shows(slice, row, j)) return true;
  }
  return false;
}

class Random {
 public:
  std::int64_t operator()(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  Numbers lengths(std::size_t count, std::int64_t high) {
    Numbers numbers;
    for (std::size_t i = 0; i < count; ++i) numbers.push_back((*this)(0, high));
    return numbers;
  }

 private:
  std::mt19937_64 engine_{tests::run_seed()};
};

bool in_window(std::int64_t offset, const Window& window) {
  return (window.left < 0 || offset >= -window.left) &&
         (window.right < 0 || offset <= window.right);
}

// The sequence that a token belongs to.
std::size_t number_of(const Numbers& starts, std::int64_t token) {
  return static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), token) -
                                  starts.begin()) -
         1;
}

std::size_t nonempty(const Numbers& lengths) {
  return static_cast<std::size_t>(std::count_if(lengths.begin(), lengths.end(),
                                                [](std::int64_t length) { return length > 0; }));
}

void add_of_one_sequence(Random& random, std::vector<Made>& made) {
  const std::int64_t rows = random(0, 20);
  const std::int64_t keys = random(0, 20);
  const Window window = {random(-1, 10), random(-1, 10)};
  const Dilation dilation = {random(0, 6), random(0, 6), random(1, 5)};
  for (const std::int32_t alignment : {TILEWISE_BOTTOM_RIGHT, TILEWISE_TOP_LEFT}) {
    const std::int64_t d = alignment == TILEWISE_BOTTOM_RIGHT ? keys - rows : 0;
    made.push_back({"causal", causal(rows, keys, alignment), rows, keys,
                    d == 0 && rows > keys ? 2u : 1u, [d](auto i, auto j) { return j <= i + d; }});
    made.push_back({"window", sliding_window(rows, keys, window, alignment), rows, keys, 3,
                    [=](auto i, auto j) { return in_window(j - i - d, window); }});
    made.push_back({"dilated", dilated(rows, keys, dilation, alignment), rows, keys,
                    static_cast<std::size_t>(dilation.left + dilation.right + 1),
                    [=](auto i, auto j) {
                      const std::int64_t offset = j - i - d;
                      return offset % dilation.step == 0 &&
                             in_window(offset / dilation.step, {dilation.left, dilation.right});
                    }});
  }
  const std::int64_t prefix = random(0, keys);
  made.push_back({"prefix", prefix_lm(rows, keys, prefix), rows, keys, 2,
                  [=](auto i, auto j) { return j < prefix || j <= i + keys - rows; }});
  const BlockSize block = {random(1, 5), random(1, 5)};
  const auto pattern = static_cast<std::uint64_t>(random(0, INT64_MAX));
  const auto visible = [=](std::int64_t row, std::int64_t column) {
    return (pattern >> ((row * 7 + column) % 63) & 1) != 0;
  };
  made.push_back({"block sparse", block_sparse(rows, keys, block, visible), rows, keys, 400,
                  [=](auto i, auto j) { return visible(i / block.rows, j / block.keys); }});
}

void add_of_documents(Random& random, std::vector<Made>& made) {
  const auto count = static_cast<std::size_t>(random(0, 5));
  const Numbers lengths = random.lengths(count, 7);
  const Numbers q = starts_of(lengths);
  const Numbers k = starts_of(random.lengths(count, 7));
  const Window window = {random(-1, 6), random(-1, 6)};
  for (const bool causal : {false, true}) {
    for (const std::int32_t alignment : {TILEWISE_BOTTOM_RIGHT, TILEWISE_TOP_LEFT}) {
      made.push_back(
          {"documents", documents(q, k, {causal, window, alignment}), q.back(), k.back(),
           3 * nonempty(lengths), [=](auto i, auto j) {
             const std::size_t b = number_of(q, i);
             if (b != number_of(k, j)) return false;
             const std::int64_t d =
                 alignment == TILEWISE_TOP_LEFT ? 0 : k[b + 1] - k[b] - (q[b + 1] - q[b]);
             return in_window(j - k[b] - (i - q[b]) - d, {window.left, causal ? 0 : window.right});
           }});
    }
  }
  made.push_back({"own documents", documents(q, {.causal = true}), q.back(), q.back(),
                  nonempty(lengths),
                  [=](auto i, auto j) { return j <= i && number_of(q, i) == number_of(q, j); }});
  const std::int64_t past = random(-1, 2);
  made.push_back({"block causal", block_causal(q, past), q.back(), q.back(), nonempty(lengths),
                  [=](auto i, auto j) {
                    const auto row = static_cast<std::int64_t>(number_of(q, i));
                    const auto key = static_cast<std::int64_t>(number_of(q, j));
                    return key <= row && (past < 0 || key >= row - past);
                  }});
}

void add_of_one_axis(Random& random, std::vector<Made>& made) {
  const Numbers answers = random.lengths(static_cast<std::size_t>(random(0, 4)), 6);
  const Numbers starts = starts_of(answers);
  const std::int64_t question = random(0, 8);
  const std::int64_t length = question + starts.back();
  const std::size_t many = nonempty(answers);
  made.push_back({"shared question", shared_question(question, answers), length, length,
                  many > 1 ? many + 1 : 1, [=](auto i, auto j) {
                    if (j > i) return false;
                    return j < question ||
                           number_of(starts, i - question) == number_of(starts, j - question);
                  }});
  const std::int64_t first = random(0, length);
  const Window window = {random(-1, 7), random(-1, 7)};
  made.push_back(
      {"global window", global_window(length, first, window), length, length, 5,
       [=](auto i, auto j) { return i < first || j < first || in_window(j - i, window); }});
  made.push_back({"causal global window", global_window(length, first, window, true), length,
                  length, 3, [=](auto i, auto j) {
                    return j <= i && (j < first || in_window(j - i, {window.left, 0}));
                  }});
}

std::vector<Made> make_all(Random& random) {
  std::vector<Made> made;
  add_of_one_sequence(random, made);
  add_of_documents(random, made);
  add_of_one_axis(random, made);
  return made;
}

TEST(Masks, ConstructorsShowTheirMaskAndNoPairTwice) {
  TILEWISE_TRACE_SEED();
  Random random;
  for (int round = 0; round < 200; ++round) {
    for (const Made& made : make_all(random)) {
      ASSERT_LE(made.slices.size(), made.most) << made.name;
      for (const Slice& slice : made.slices) {
        ASSERT_TRUE(slice.q1 <= made.rows && slice.k1 <= made.keys) << made.name;
        ASSERT_TRUE(shows_a_key(slice, slice.q0) && shows_a_key(slice, slice.q1 - 1)) << made.name;
      }
      for (std::int64_t i = 0; i < made.rows; ++i) {
        for (std::int64_t j = 0; j < made.keys; ++j) {
          const auto count = std::count_if(made.slices.begin(), made.slices.end(),
                                           [&](const Slice& slice) { return shows(slice, i, j); });
          ASSERT_EQ(count, made.sees(i, j) ? 1 : 0)
              << made.name << " (" << made.rows << ", " << made.keys << ") at " << i << ", " << j;
        }
      }
    }
  }
}

// Random attention in fp64: one head of dimension 4.
struct Attention {
  std::vector<double> q, k, v, out, lse;
  Problem problem;

  Attention(const Made& made, Random& random) {
    for (std::vector<double>* const list : {&q, &k, &v}) {
      const std::int64_t length = list == &q ? made.rows : made.keys;
      for (std::int64_t i = 0; i < 4 * length; ++i)
        list->push_back(static_cast<double>(random(-1000, 1000)) / 500);
    }
    out.resize(q.size());
    lse.resize(q.size() / 4);
    problem.q = tilewise::tensor(std::span(q), {1, made.rows, 1, 4});
    problem.k = tilewise::tensor(std::span(k), {1, made.keys, 1, 4});
    problem.v = tilewise::tensor(std::span(v), {1, made.keys, 1, 4});
    problem.out = tilewise::tensor(std::span(out), {1, made.rows, 1, 4});
    problem.lse = tilewise::tensor(std::span(lse), {1, 1, made.rows});
  }
};

void expect_same(const std::vector<double>& of_slices, const std::vector<double>& of_mask,
                 const char* name) {
  for (std::size_t i = 0; i < of_mask.size(); ++i) {
    if (std::isinf(of_mask[i])) {
      EXPECT_EQ(of_slices[i], of_mask[i]) << name;
    } else {
      EXPECT_NEAR(of_slices[i], of_mask[i], 1e-12) << name;
    }
  }
}

TEST(Masks, AttentionIsThatOfTheBooleanMask) {
  TILEWISE_TRACE_SEED();
  Random random;
  for (const Made& made : make_all(random)) {
    Attention attention(made, random);
    attention.problem.slices = tensor(made.slices);
    forward(attention.problem);
    const std::vector<double> out = attention.out;
    const std::vector<double> lse = attention.lse;
    std::vector<unsigned char> mask;
    for (std::int64_t i = 0; i < made.rows; ++i) {
      for (std::int64_t j = 0; j < made.keys; ++j) mask.push_back(made.sees(i, j) ? 1 : 0);
    }
    attention.problem.slices = {};
    attention.problem.mask =
        tilewise::tensor(mask.data(), TILEWISE_BOOL, {1, 1, made.rows, made.keys});
    forward(attention.problem);
    expect_same(out, attention.out, made.name);
    expect_same(lse, attention.lse, made.name);
  }
}

TEST(Masks, ListsOfHeadsAreOneList) {
  const std::vector<Slices> lists = {causal(5, 7), {}, sliding_window(5, 7, {2, 0})};
  const Slices slices = per_head(lists);
  ASSERT_EQ(slices.size(), 1 + lists[2].size());
  EXPECT_EQ(slices[0], (Slice{0, 5, 0, 7, TILEWISE_SLICE_CAUSAL, 0}));
  for (std::size_t i = 1; i < slices.size(); ++i) EXPECT_EQ(slices[i].head, 2);
  EXPECT_EQ(tensor(slices).shape[0], static_cast<std::int64_t>(slices.size()));
  EXPECT_EQ(tensor({}).shape[0], 0);
}

TEST(Masks, EveryContainerOfNumbersHasTheStartsOfDocuments) {
  const std::vector<std::int32_t> starts = {0, 3, 8};
  const std::array<int, 2> lengths = {3, 5};
  EXPECT_EQ(starts_of(lengths), (Numbers{0, 3, 8}));
  EXPECT_EQ(documents(starts), documents(starts_of(lengths)));
}

TEST(Masks, BadInputIsRefusedByName) {
  const Numbers falls = {0, 4, 3};
  const Numbers late = {1, 4};
  const Numbers good = {0, 4};
  const Numbers negative = {2, -1};
  const auto all = [](std::int64_t, std::int64_t) { return true; };
  const std::vector<std::pair<std::function<void()>, std::string>> cases = {
      {[] { causal(-1, 3); }, "q_len: is -1, must be 0 to 576460752303423488"},
      {[] { causal(3, 3, 2); }, "alignment: is 2, must be 0 to 1"},
      {[] {
         sliding_window(3, 3, {-2, 0});
       },
       "window.left: is -2, must be -1 to"},
      {[] {
         sliding_window(3, 3, {0, -3});
       },
       "window.right: is -3, must be -1 to"},
      {[] { prefix_lm(3, 4, 5); }, "prefix: is 5, must be 0 to 4"},
      {[&] { documents(falls); }, "cu_seqlens[2]: is 3, must be 4 to"},
      {[&] { documents(late); }, "cu_seqlens[0]: is 1, must be 0 to 0"},
      {[] { documents(Numbers{}); }, "cu_seqlens: is empty, must begin with 0"},
      {[&] { documents(good, Numbers{0}, {}); },
       "cu_seqlens_k: has 0 documents, must have those of the queries, 1"},
      {[&] { starts_of(negative); }, "lengths[1]: is -1, must be 0 to"},
      {[&] { block_causal(good, -2); }, "past: is -2, must be -1 to"},
      {[&] { shared_question(1, negative); }, "answers[1]: is -1, must be 0 to"},
      {[&] { shared_question(-1, good); }, "question: is -1, must be 0 to"},
      {[] { global_window(3, 4, {}); }, "global_tokens: is 4, must be 0 to 3"},
      {[] {
         dilated(3, 3, {0, 0, 0});
       },
       "dilation.step: is 0, must be 1 to"},
      {[&] {
         block_sparse(3, 3, {0, 1}, all);
       },
       "block.rows: is 0, must be 1 to"},
  };
  for (const auto& [call, words] : cases) {
    try {
      call();
      ADD_FAILURE() << words;
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), TILEWISE_INVALID_ARGUMENT);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace tilewise::masks
