// Tests explain --slices, --tile and --plot: areas and tiles of masks by hand, the picture, bad
// input.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "support.h"
#include "support/seed.h"

namespace tilewise::cli_test {
namespace {

using nlohmann::json;

class ExplainMask : public Cli {
 protected:
  // Full, partial and empty tiles; visible, visited and all pairs.
  void expect_counts(const std::string& arguments, const std::vector<std::int64_t>& counts) const {
    const json result = explain_json(arguments);
    const std::vector<std::int64_t> found = {result["tiles"]["full"],  result["tiles"]["partial"],
                                             result["tiles"]["empty"], result["visible_pairs"],
                                             result["visited_pairs"],  result["pairs"]};
    EXPECT_EQ(found, counts) << arguments;
    EXPECT_EQ(result["skipped_pairs"], counts[5] - counts[4]) << arguments;
  }
  void expect_refused(const std::string& arguments, const std::vector<std::string>& words) const {
    const Outcome outcome = run("explain " + arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    for (const std::string& word : words) {
      EXPECT_NE(outcome.err.find(word), std::string::npos) << outcome.err << " lacks " << word;
    }
  }
};

TEST_F(ExplainMask, CountsAreThoseByHand) {
  const std::string causal = "--shape 3,512,512,4,2,64 --causal ";  // all sequences have one mask
  expect_counts(causal + "--tile 128,128", {6, 4, 6, 512 * 513 / 2, 10 * 16384, 512 * 512});
  expect_counts(causal + "--tile 64,256", {4, 8, 4, 512 * 513 / 2, 12 * 16384, 512 * 512});
  expect_counts("--shape 1,10,10,1,1,8 --window 0,0 --tile 4,4", {0, 3, 6, 10, 36, 100});
  // Two halves of a tile in two slices fill it; a pair that two slices show counts once.
  write("halves.npy", index_array({0, 4, 0, 2, 0, 0, 4, 2, 4, 0, 0, 8, 4, 5, 0, 2, 4, 3, 8, 1},  //
                                  {4, 5}));
  expect_counts("--slices halves.npy --tile 4,4", {1, 2, 1, 16 + 8 + 5, 48, 64});
  write("heads.npy", index_array({0, 4, 0, 4, 0, -1, 4, 8, 0, 8, 1, 1}, {2, 6}));
  expect_counts("--slices heads.npy --tile 4,4", {3, 1, 4, 32 + 26, 64, 128});
  write("starts.npy", index_array({0, 30, 30, 100}, {4}));
  expect_counts("--shape 1,100,100,1,1,8 --cu-seqlens-q starts.npy --tile 10,10",
                {9 + 49, 0, 42, 900 + 4900, 5800, 10000});
  write("none.npy", index_array({}, {0, 5}));
  expect_counts("--slices none.npy", {0, 0, 0, 0, 0, 0});
  expect_counts("--shape 1,9,7,1,1,8 --slices none.npy --tile 4,4", {0, 0, 6, 0, 0, 63});
}

// Whether one of the slices (q0, q1, k0, k1, kind) shows key j to row i: docs/semantics.md.
bool visible(const std::vector<std::int64_t>& slices, std::int64_t i, std::int64_t j) {
  for (std::size_t s = 0; s < slices.size(); s += 5) {
    const std::int64_t row = i - slices[s];
    const std::int64_t key = j - slices[s + 2];
    const std::int64_t rows = slices[s + 1] - slices[s];
    const std::int64_t keys = slices[s + 3] - slices[s + 2];
    if (row < 0 || row >= rows || key < 0 || key >= keys) continue;
    const bool below = (slices[s + 4] & 1) == 0 || key <= row + keys - rows;
    const bool above = (slices[s + 4] & 2) == 0 || key >= row;
    if (below && above) return true;
  }
  return false;
}

// Full, partial and empty tiles; visible, visited and all pairs, pair by pair.
std::vector<std::int64_t> counted(const std::vector<std::int64_t>& slices, std::int64_t length,
                                  std::int64_t rows, std::int64_t keys) {
  std::vector<std::int64_t> counts = {0, 0, 0, 0, 0, length * length};
  for (std::int64_t i = 0; i < length; i += rows) {
    for (std::int64_t j = 0; j < length; j += keys) {
      const std::int64_t pairs = std::min(rows, length - i) * std::min(keys, length - j);
      std::int64_t seen = 0;
      for (std::int64_t p = 0; p < rows * keys; ++p)
        seen += visible(slices, i + p / keys, j + p % keys);
      ++counts[seen == 0 ? 2 : seen == pairs ? 0 : 1];
      counts[3] += seen;
      counts[4] += seen == 0 ? 0 : pairs;
    }
  }
  return counts;
}

TEST_F(ExplainMask, CountsOfRandomListsAreThosePairByPair) {
  TILEWISE_TRACE_SEED();
  std::mt19937_64 engine(tests::run_seed());
  const auto random = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine);
  };
  for (int round = 0; round < 40; ++round) {
    const std::int64_t length = random(1, 24);
    std::vector<std::int64_t> slices;
    for (int s = 0; s < 3; ++s) {
      for (int axis = 0; axis < 2; ++axis) {
        const std::int64_t begin = random(0, length);
        slices.push_back(begin);
        slices.push_back(random(begin, length));
      }
      slices.push_back(random(0, 3));
    }
    const std::int64_t rows = random(1, 7);
    const std::int64_t keys = random(1, 7);
    write("random.npy", index_array(slices, {3, 5}));
    expect_counts("--shape 1," + std::to_string(length) + "," + std::to_string(length) +
                      ",1,1,8 --slices random.npy --tile " + std::to_string(rows) + "," +
                      std::to_string(keys),
                  counted(slices, length, rows, keys));
  }
}

TEST_F(ExplainMask, LongMasksAreCountedQuickly) {
  const std::int64_t length = std::int64_t{1} << 20;
  write("band.npy", index_array({0, length, 0, length, 1, 0, length, 0, 4, 0}, {2, 5}));
  const json result = explain_json("--slices band.npy --tile 256,256");
  EXPECT_EQ(result["visible_pairs"].get<std::int64_t>(), length / 2 * (length + 1) + 6);
  EXPECT_EQ(result["tiles"]["partial"].get<std::int64_t>(), 4096);
}

TEST_F(ExplainMask, TheTextSaysWhatTheJsonSays) {
  const Outcome outcome = run("explain --shape 1,512,512,4,2,64 --causal --tile 128,128");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* words :
       {"512 queries x 512 keys, 1 slice, tiles of 128 x 128", "131328  50.10 %", "163840  62.50 %",
        "98304  37.50 %", "partial       4  25.00 %", "80.2 % of what is visited is visible"}) {
    EXPECT_NE(outcome.out.find(words), std::string::npos) << outcome.out << " lacks " << words;
  }
}

TEST_F(ExplainMask, ThePlotHasTilesAxesAndALegend) {
  write("heads.npy", index_array({0, 300, 0, 300, 1, 0, 0, 300, 0, 300, 0, 1}, {2, 6}));
  const Outcome outcome = run("explain --slices heads.npy --tile 100,50 --plot mask.svg");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("plot: mask.svg"), std::string::npos);
  const std::string svg = contents().at("mask.svg");
  for (const char* words :
       {"<svg", "300 queries x 300 keys, head 0", "tiles of 100 x 50: 50.2 % of the pairs visible",
        ">key<", ">query<", "visible, in 6 full tiles", "visible, in 6 partial tiles",
        "6 empty tiles: skipped", "</svg>"}) {
    EXPECT_NE(svg.find(words), std::string::npos) << words;
  }
  EXPECT_EQ(run("explain --slices heads.npy --tile 100,50 --plot bare.svg --bare --head 1").code,
            0);
  const std::string bare = contents().at("bare.svg");
  EXPECT_EQ(bare.find("<text"), std::string::npos);
  for (const std::string& picture : {svg, bare}) {
    EXPECT_EQ(picture.find("nan"), std::string::npos);
    EXPECT_EQ(picture.find("inf"), std::string::npos);
  }
  EXPECT_EQ(run("explain --shape 1,0,0,1,1,8 --plot empty.svg").code, 0);
  EXPECT_EQ(contents().at("empty.svg").find("nan"), std::string::npos);
}

TEST_F(ExplainMask, BadInputIsRefusedByName) {
  write("outside.npy", index_array({0, 64, 0, 65, 0}, {1, 5}));
  write("kind.npy", index_array({0, 64, 0, 64, 4}, {1, 5}));
  const std::string good = "--shape 1,64,64,2,2,8 ";
  expect_refused("--plot p.svg", {"--shape", "missing", "--slices"});
  expect_refused(good + "--slices outside.npy", {"slices[0]", "0..65", "0..64"});
  expect_refused("--slices kind.npy", {"slices[0]", "kind is 4"});
  expect_refused(good + "--tile 0,4", {"--tile", "\"0,4\"", "from 1 on"});
  expect_refused(good + "--tile 4", {"--tile", "4"});
  expect_refused("--shape 1,4194304,4194304,1,1,8 --tile 1,1", {"--tile", "1 x 1", "268435456"});
  expect_refused(good + "--plot p.svg --head 1", {"--head", "1"});
  expect_refused(good + "--tile 4,4 --bare", {"--bare", "--plot"});
  expect_refused(good + "--head 0", {"--head", "--plot"});
  expect_refused(good + "--plot nowhere/p.svg", {"nowhere/p.svg"});
  expect_refused(good + "--tile 4,4 --op backward", {"--op", "--tile"});
  expect_refused(good + "--plot p.svg --sram 4096", {"--sram", "--plot"});
  expect_refused(good + "--tile 4,4 --dtype bf16", {"--dtype", "--tile"});
  expect_refused(good + "--ranks 2 --bandwidth 1 --peak 1 --tile 4,4", {"--tile", "--ranks"});
  expect_refused("--shape 1,4096,4096,1,1,8 --causal --slices outside.npy",
                 {"--slices", "--causal"});
  EXPECT_EQ(contents().count("p.svg"), 0u);
}

}  // namespace
}  // namespace tilewise::cli_test
