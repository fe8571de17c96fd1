// Whole training runs on the repository's own text.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "report.h"
#include "support/seed.h"
#include "train.h"

namespace gpt {
namespace {

ModelConfig small_config() {
  ModelConfig config;
  config.layers = 2;
  config.width = 48;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.mlp_width = 96;
  return config;
}

TrainOptions small_options(const std::string& kernel, std::int64_t steps) {
  TrainOptions options;
  options.attention_kernel = kernel;
  options.steps = steps;
  options.sequences = 2;
  options.length = 96;
  return options;
}

double mean_of_ten(std::vector<double>::const_iterator first) {
  return std::accumulate(first, first + 10, 0.0) / 10;
}

// This is the claim of the library: tiling changes where numbers are stored, not what is learned.
TEST(Train, FiftyStepsInFp64AgreeBetweenStandardAndTiled) {
  const std::uint64_t seed = tilewise::tests::run_seed();
  TILEWISE_TRACE_SEED();
  const Compute compute;
  const Corpus corpus = read_corpus(GPT_TEXT_DIRECTORY);
  TrainOptions standard_options = small_options("three_pass", 50);
  TrainOptions tiled_options = small_options("", 50);
  standard_options.seed = tiled_options.seed = seed;
  const TrainResult<double> standard =
      train<double>(small_config(), standard_options, corpus, compute);
  const TrainResult<double> tiled = train<double>(small_config(), tiled_options, corpus, compute);
  ASSERT_EQ(standard.forward_kernel, "three_pass");
  ASSERT_NE(tiled.forward_kernel, "three_pass");
  ASSERT_EQ(standard.losses.size(), 50u);
  ASSERT_EQ(tiled.losses.size(), 50u);
  EXPECT_LT(largest_difference(standard.losses, tiled.losses), 1e-9);
  EXPECT_LT(mean_of_ten(tiled.losses.end() - 10), mean_of_ten(tiled.losses.begin()) - 1.0);
}

TEST(Train, IsTheSameForEveryNumberOfThreads) {
  const Corpus corpus = read_corpus(GPT_TEXT_DIRECTORY);
  const TrainOptions options = small_options("", 5);
  const Compute one(1);
  const Compute three(3);
  const TrainResult<float> alone = train<float>(small_config(), options, corpus, one);
  const TrainResult<float> together = train<float>(small_config(), options, corpus, three);
  EXPECT_EQ(alone.losses, together.losses);
  EXPECT_EQ(alone.parameters.values, together.parameters.values);
}

// Ranks that divide the sequences, some of which have fewer tokens than others, learn what one
// does.
TEST(Train, RanksTrainTheModelOfOneProcess) {
  constexpr std::int32_t kRanks = 3;
  const Corpus corpus = read_corpus(GPT_TEXT_DIRECTORY);
  TrainOptions options = small_options("", 4);
  options.length = 97;
  const Compute compute(1);
  const TrainResult<double> alone = train<double>(small_config(), options, corpus, compute);
  const tilewise::LocalGroup group(kRanks);
  std::vector<std::optional<TrainResult<double>>> results(kRanks);
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const Compute own(1);
      const Ranks ranks(group.communicator(rank));
      TrainOptions divided = options;
      divided.ranks = &ranks;
      results[static_cast<std::size_t>(rank)] = train<double>(small_config(), divided, corpus, own);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) {
    EXPECT_EQ(result->forward_kernel, "ring");
    EXPECT_LT(largest_difference(result->losses, alone.losses), 1e-12);
    EXPECT_LT(largest_difference(result->parameters.values, alone.parameters.values), 1e-9);
    EXPECT_EQ(result->parameters.values, results[0]->parameters.values);
  }
}

TEST(Train, TiledAttentionNeedsLessMemory) {
  const Compute compute(2);
  const ModelConfig config = small_config();
  const Attention<float> standard(config, 1, 2048, "three_pass", compute);
  const Attention<float> tiled(config, 1, 2048, "", compute);
  const std::size_t scores = std::size_t{2048} * 2048 * sizeof(float);
  EXPECT_GE(standard.memory().backward_workspace, scores);
  EXPECT_LT(tiled.memory().forward_workspace, scores / 16);
  EXPECT_LT(tiled.memory().backward_workspace, scores / 4);
}

}  // namespace
}  // namespace gpt
