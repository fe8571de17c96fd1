// The C++ code of docs/masks.md: each mask has as many slices and as much visible area as the page
// says.
#include <gtest/gtest.h>
#include <tilewise/masks.hpp>

#include <cstdio>
#include <fstream>
#include <map>
#include <numeric>
#include <regex>
#include <sstream>

#include "distributed/magi/area.h"

namespace tilewise::tests {
namespace {

using masks::Slices;

constexpr std::int64_t kLength = 2048;

Slices causal() {
  // snippet: causal
  const auto slices = tilewise::masks::causal(2048, 2048);  // Sq, Sk
  // end of snippet
  return slices;
}

Slices sliding_window() {
  // snippet: sliding window
  const auto slices = tilewise::masks::sliding_window(2048, 2048, {511, 0});  // left, right
  // end of snippet
  return slices;
}

Slices prefix_lm() {
  // snippet: prefix
  const auto slices = tilewise::masks::prefix_lm(2048, 2048, 700);
  // end of snippet
  return slices;
}

Slices packed_documents() {
  // snippet: documents
  const std::vector<int> starts = {0, 500, 1300, 1400, 2048};  // cu_seqlens
  const auto slices = tilewise::masks::documents(starts, {.causal = true});
  // end of snippet
  return slices;
}

Slices block_causal() {
  // snippet: block causal
  const std::vector<int> frames(8, 256);
  const auto slices = tilewise::masks::block_causal(tilewise::masks::starts_of(frames));
  // end of snippet
  return slices;
}

Slices shared_question() {
  // snippet: shared question
  const std::vector<int> answers = {300, 448, 200, 500};
  const auto slices = tilewise::masks::shared_question(600, answers);
  // end of snippet
  return slices;
}

Slices global_window() {
  // snippet: global window
  const auto slices = tilewise::masks::global_window(2048, 128, {256, 256});
  // end of snippet
  return slices;
}

Slices attention_sinks() {
  // snippet: attention sinks
  const auto slices = tilewise::masks::global_window(2048, 4, {511, 0}, /*causal=*/true);
  // end of snippet
  return slices;
}

Slices dilated() {
  // snippet: dilated
  const auto slices = tilewise::masks::dilated(2048, 2048, {.left = 3, .right = 0, .step = 448});
  // end of snippet
  return slices;
}

Slices block_sparse() {
  // snippet: block sparse
  const auto visible = [](std::int64_t row, std::int64_t column) {
    return column <= row && (row - column < 2 || column % 5 == 0);
  };
  const auto slices = tilewise::masks::block_sparse(2048, 2048, {128, 128}, visible);
  // end of snippet
  return slices;
}

// Returns the share of the pairs that are visible, as the page prints it.
std::string visible_share(const Slices& slices) {
  std::vector<distributed::magi::Slice> rows;
  for (const masks::Slice& s : slices) rows.push_back({s.q0, s.q1, s.k0, s.k1, s.kind, s.head});
  distributed::magi::Mask mask;
  EXPECT_EQ(mask_of_slices(rows, kLength, kLength, 1, &mask), TILEWISE_OK);
  const auto area = static_cast<double>(total_area(mask));
  char text[16];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * area / (kLength * kLength));
  return text;
}

// Returns {title: "slices | visible"} of the rows of the page's table.
std::map<std::string, std::string> rows_of_page() {
  std::ifstream file(std::string(TILEWISE_SOURCE_DIR) + "/docs/masks.md");
  std::map<std::string, std::string> rows;
  const std::regex row(R"(\| \[(.*)\]\(#.*\) \| (\d+ \| [0-9.]+ %) \| .* \|)");
  std::smatch match;
  for (std::string line; std::getline(file, line);) {
    if (std::regex_match(line, match, row)) rows[match.str(1)] = match.str(2);
  }
  return rows;
}

TEST(Docs, MasksHaveTheSlicesAndAreaOfThePage) {
  const std::map<std::string, Slices> made = {{"Causal", causal()},
                                              {"Sliding window", sliding_window()},
                                              {"Prefix LM", prefix_lm()},
                                              {"Documents", packed_documents()},
                                              {"Block-causal", block_causal()},
                                              {"Shared question", shared_question()},
                                              {"Global tokens and a window", global_window()},
                                              {"Attention sinks", attention_sinks()},
                                              {"Dilated", dilated()},
                                              {"Block-sparse", block_sparse()}};
  const std::map<std::string, std::string> rows = rows_of_page();
  EXPECT_EQ(rows.size(), made.size());
  for (const auto& [title, slices] : made) {
    ASSERT_EQ(rows.count(title), 1u) << title;
    EXPECT_EQ(std::to_string(slices.size()) + " | " + visible_share(slices), rows.at(title))
        << title;
  }
}

TEST(Docs, AListOfSlicesIsTheMaskOfAProblem) {
  const std::vector<float> q(2048);
  std::vector<float> v(2048);
  std::iota(v.begin(), v.end(), 0.0F);
  std::vector<float> out(2048);
  tilewise::Problem problem;
  problem.q = problem.k = tilewise::tensor(std::span(q), {1, 2048, 1, 1});
  problem.v = tilewise::tensor(std::span(v), {1, 2048, 1, 1});
  problem.out = tilewise::tensor(std::span(out), {1, 2048, 1, 1});
  // snippet: use
  const auto slices = tilewise::masks::prefix_lm(2048, 2048, 700);
  problem.slices = tilewise::masks::tensor(slices);  // a view: `slices` must outlive the call
  tilewise::forward(problem);
  // end of snippet
  EXPECT_NEAR(out.front(), 699 / 2.0, 1e-2);  // the mean of the numbers of the visible keys
  EXPECT_NEAR(out.back(), 2047 / 2.0, 1e-2);
}

}  // namespace
}  // namespace tilewise::tests
