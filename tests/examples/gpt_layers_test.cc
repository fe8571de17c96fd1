// Tests the parts of examples/gpt that the gradient test cannot check: what they compute, and not
// only that forward and backward match.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "adamw.h"
#include "data.h"
#include "layers.h"
#include "report.h"
#include "train.h"

namespace gpt {
namespace {

TEST(RmsNorm, DividesByTheRootMeanSquare) {
  const Compute compute(1);
  const std::vector<double> x = {3, 4, 0, 0};
  const std::vector<double> gain = {1, 2, 3, 4};
  std::vector<double> out(4);
  rms_norm(compute, x.data(), gain.data(), 1, 4, out.data());
  const double rms = std::sqrt(25.0 / 4 + 1e-5);
  EXPECT_NEAR(out[0], 3 / rms, 1e-15);
  EXPECT_NEAR(out[1], 8 / rms, 1e-15);
  EXPECT_EQ(out[2], 0);
}

TEST(Rotary, ScoresDependOnTheDistanceOnly) {
  const Compute compute(1);
  ModelConfig config;
  config.heads = 1;
  config.kv_heads = 1;
  config.head_dim = 6;
  const Rotary<double> rotary(40, config.head_dim);
  const std::vector<double> q = {1, -2, 3, 0.5, 4, -1};
  const std::vector<double> k = {2, 1, -1, 3, 0.25, 2};
  // Returns q and k of one head, rotated to a position; v must not change.
  const auto turn = [&](std::int64_t position) {
    std::vector<double> qkv = q;
    qkv.insert(qkv.end(), k.begin(), k.end());
    qkv.insert(qkv.end(), 6, 7.0);
    rotary.apply(compute, config, {1, {&position, 1}}, Rotary<double>::Direction::kForward,
                 qkv.data());
    EXPECT_EQ(std::vector<double>(qkv.end() - 6, qkv.end()), std::vector<double>(6, 7.0));
    return qkv;
  };
  const auto score = [&](std::int64_t query_position, std::int64_t key_position) {
    const std::vector<double> query = turn(query_position);
    const std::vector<double> key = turn(key_position);
    double sum = 0;
    for (std::size_t i = 0; i < 6; ++i) sum += query[i] * key[6 + i];
    return sum;
  };
  EXPECT_NEAR(score(3, 1), score(37, 35), 1e-12);
  EXPECT_GT(std::fabs(score(3, 1) - score(3, 2)), 1e-3);
  EXPECT_EQ(turn(0)[0], q[0]);
}

TEST(CrossEntropy, OfUniformLogitsIsLog256) {
  const Compute compute(1);
  std::vector<double> logits(2 * 256, 1.5);
  const std::vector<std::uint8_t> targets = {0, 255};
  EXPECT_NEAR(cross_entropy(compute, targets.data(), 2, 2, logits.data()), std::log(256.0), 1e-13);
  EXPECT_NEAR(logits[0], (1.0 / 256 - 1) / 2, 1e-15);
  EXPECT_NEAR(logits[1], 1.0 / 512, 1e-15);
}

// Two steps, worked out by hand for one weight. With bias correction the first step moves by the
// learning rate.
TEST(AdamW, FollowsThePaper) {
  const Compute compute(1);
  ModelConfig config;
  config.layers = 1;
  Parameters<double> parameters(config);
  Parameters<double> gradient(config);
  parameters.values[0] = 2.0;
  gradient.values[0] = 0.5;
  AdamWOptions options;
  options.epsilon = 0;
  AdamW<double> optimizer(compute, parameters.values.size(), options);
  // Every other gradient is 0, and its step would be 0/0 without epsilon, so only weight 0 is
  // checked.
  EXPECT_DOUBLE_EQ(optimizer.step(0.1, gradient, parameters), 0.5);
  EXPECT_NEAR(parameters.values[0], 2.0 * (1 - 0.1 * 0.1) - 0.1, 1e-14);
  gradient.values[0] = -1.0;
  const double before = parameters.values[0];
  optimizer.step(0.1, gradient, parameters);
  const double first = (0.9 * 0.1 * 0.5 - 0.1) / (1 - 0.81);
  const double second = (0.95 * 0.05 * 0.25 + 0.05) / (1 - 0.9025);
  EXPECT_NEAR(parameters.values[0], before * 0.99 - 0.1 * first / std::sqrt(second), 1e-14);
}

TEST(AdamW, ClipsTheNormAndSparesTheGains) {
  const Compute compute(1);
  ModelConfig config;
  config.layers = 1;
  Parameters<double> parameters(config, 1);
  Parameters<double> gradient(config);
  gradient.values[0] = 30;
  gradient.values[1] = 40;
  AdamWOptions options;
  options.epsilon = 1e6;  // far above the root of the second moment: the step is the clipped
                          // gradient over epsilon
  AdamW<double> optimizer(compute, parameters.values.size(), options);
  const std::vector<double> before = parameters.values;
  EXPECT_DOUBLE_EQ(optimizer.step(0.5, gradient, parameters), 50);
  EXPECT_NEAR(parameters.values[0] - before[0] * 0.95, -0.5 * 0.6 / (1e6 + 0.6), 1e-16);
  EXPECT_EQ(*parameters.final_gain(), 1.0);
}

TEST(LearningRate, WarmsUpAndFallsToATenth) {
  EXPECT_NEAR(learning_rate_at(0, 1000, 1.0), 0.05, 1e-12);
  EXPECT_GT(learning_rate_at(30, 1000, 1.0), 0.99);
  EXPECT_NEAR(learning_rate_at(500, 1000, 1.0), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate_at(1000, 1000, 1.0), 0.1, 1e-12);
}

class CorpusTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "gpt_corpus_" + std::to_string(getpid());
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::filesystem::path root_;
};

TEST_F(CorpusTest, ReadsInAFixedOrder) {
  write("src/b.cc", "5");
  write("src/a/z.h", "4");
  write("src/notes.txt", "no");
  write("include/x.hpp", "3");
  write("docs/b.md", "2");
  write("docs/a.md", "1");
  write("docs/figure.svg", "no");
  write("README.md", "0");
  const Corpus corpus = read_corpus(root_);
  EXPECT_EQ(std::string(corpus.bytes.begin(), corpus.bytes.end()), "012345");
  EXPECT_EQ(corpus.files, 6);
}

TEST_F(CorpusTest, RefusesAnEmptyFolderAndAShortText) {
  EXPECT_THROW(read_corpus(root_), std::runtime_error);
  write("README.md", "12345678");
  const Corpus corpus = read_corpus(root_);
  Random random(1);
  Batch batch;
  EXPECT_THROW(sample_batch(corpus, 1, 8, random, &batch), std::runtime_error);
  sample_batch(corpus, 2, 7, random, &batch);
  EXPECT_EQ(std::string(batch.inputs.begin(), batch.inputs.end()), "12345671234567");
  EXPECT_EQ(std::string(batch.targets.begin(), batch.targets.end()), "23456782345678");
}

TEST(Report, LargestDifferenceShowsNaN) {
  EXPECT_EQ(largest_difference({1, 2, 3}, {1, 2.5, 2.75}), 0.5);
  EXPECT_TRUE(std::isnan(largest_difference({1, std::nan(""), 3}, {1, 2, 3})));
}

TEST(Report, BytesHaveBinaryUnits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(std::size_t{64} << 20), "64 MiB");
}

}  // namespace
}  // namespace gpt
