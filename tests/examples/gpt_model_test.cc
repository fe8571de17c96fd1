// Tests the gradient of the whole model, and that every way to run it gives the same numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "capture.h"
#include "generate.h"
#include "io/safetensors.h"
#include "model.h"
#include "random.h"
#include "support/seed.h"

namespace gpt {
namespace {

ModelConfig tiny_config() {
  ModelConfig config;
  config.layers = 2;
  config.width = 12;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 6;
  config.mlp_width = 10;
  return config;
}

constexpr std::int64_t kSequences = 2;
constexpr std::int64_t kLength = 9;

std::vector<std::uint8_t> random_bytes(std::int64_t count, Random& random) {
  std::vector<std::uint8_t> bytes;
  for (std::int64_t i = 0; i < count; ++i)
    bytes.push_back(static_cast<std::uint8_t>(random.below(256)));
  return bytes;
}

// The weights are far from their initial values, so that no part of the gradient is small by
// accident.
Parameters<double> random_parameters(const ModelConfig& config, Random& random) {
  Parameters<double> parameters(config);
  for (double& value : parameters.values) value = 0.4 * random.normal();
  return parameters;
}

class ModelGradient : public testing::TestWithParam<const char*> {};

// Tests (loss(w + h u) - loss(w - h u)) / 2h = gradient . u along a random direction u in each
// weight array. The error of the difference is about h^2 times the third derivative, plus 1e-16 / h
// from rounding.
TEST_P(ModelGradient, AgreesWithFiniteDifferences) {
  const std::uint64_t seed = tilewise::tests::run_seed();
  TILEWISE_TRACE_SEED();
  Random random(seed);
  const ModelConfig config = tiny_config();
  const Compute compute(2);
  Model<double> model(config, kSequences, kLength, GetParam(), compute);
  Parameters<double> parameters = random_parameters(config, random);
  const std::vector<std::uint8_t> tokens = random_bytes(kSequences * kLength, random);
  const std::vector<std::uint8_t> targets = random_bytes(kSequences * kLength, random);
  Parameters<double> gradient(config);
  model.step(parameters, tokens, targets, gradient);

  constexpr double kStep = 1e-5;
  Parameters<double> scratch(config);
  for (const WeightInfo& weight : parameters.weights()) {
    Parameters<double> moved = parameters;
    std::vector<double> direction(parameters.values.size());
    double expected = 0;
    for (std::int64_t i = weight.offset; i < weight.offset + weight.rows * weight.columns; ++i) {
      const std::size_t at = static_cast<std::size_t>(i);
      direction[at] = random.normal();
      expected += direction[at] * gradient.values[at];
    }
    const auto loss_at = [&](double step) {
      for (std::size_t i = 0; i < direction.size(); ++i)
        moved.values[i] = parameters.values[i] + step * direction[i];
      return model.step(moved, tokens, targets, scratch);
    };
    const double difference = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    EXPECT_NEAR(difference, expected, 1e-6 * std::fabs(expected) + 1e-8) << weight.name;
    EXPECT_NE(expected, 0) << weight.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, ModelGradient, testing::Values("three_pass", ""),
                         [](const testing::TestParamInfo<const char*>& kernel) {
                           return std::string(*kernel.param == '\0' ? "tiled" : "standard");
                         });

TEST(Model, GradientsAddUp) {
  Random random(5);
  const ModelConfig config = tiny_config();
  const Compute compute(1);
  Model<double> model(config, kSequences, kLength, "", compute);
  Parameters<double> parameters = random_parameters(config, random);
  const std::vector<std::uint8_t> tokens = random_bytes(kSequences * kLength, random);
  Parameters<double> once(config);
  Parameters<double> twice(config);
  model.step(parameters, tokens, tokens, once);
  model.step(parameters, tokens, tokens, twice);
  model.step(parameters, tokens, tokens, twice);
  for (std::size_t i = 0; i < once.values.size(); ++i)
    ASSERT_NEAR(twice.values[i], 2 * once.values[i], 1e-12) << "weight " << i;
}

// The logits are computed byte by byte with the cache, and all at once.
TEST(Model, DecoderAgreesWithTheFullForwardPass) {
  Random random(6);
  const ModelConfig config = tiny_config();
  const Compute compute(2);
  Model<double> model(config, 1, kLength, "", compute);
  Parameters<double> parameters = random_parameters(config, random);
  const std::vector<std::uint8_t> tokens = random_bytes(kLength, random);
  const std::span<const double> expected = model.forward(parameters, tokens);
  Decoder<double> decoder(config, parameters, kLength, compute);
  for (std::size_t position = 0; position < tokens.size(); ++position) {
    const std::vector<double>& logits = decoder.feed(tokens[position]);
    for (std::size_t j = 0; j < logits.size(); ++j)
      ASSERT_NEAR(logits[j], expected[position * 256 + j], 1e-11)
          << "position " << position << ", byte " << j;
  }
  EXPECT_THROW(decoder.feed(0), std::length_error);
}

TEST(Generate, DependsOnTheSeedOnly) {
  Random random(7);
  const ModelConfig config = tiny_config();
  const Compute compute(1);
  Parameters<double> parameters = random_parameters(config, random);
  const auto text = [&](std::uint64_t seed) {
    Decoder<double> decoder(config, parameters, 64, compute);
    return generate(decoder, "abc", {40, 1.0, seed});
  };
  EXPECT_EQ(text(1).size(), 40u);
  EXPECT_EQ(text(1), text(1));
  EXPECT_NE(text(1), text(2));
}

// The file holds q, k, v such that their attention is what the model computed.
TEST(Capture, SavedTensorsAreTheModels) {
  Random random(8);
  const ModelConfig config = tiny_config();
  const Compute compute(1);
  Parameters<float> parameters(config, 3);
  Corpus corpus;
  corpus.bytes = random_bytes(kLength + 5, random);
  const std::string path = testing::TempDir() + "capture_test.safetensors";
  save_attention_inputs(config, parameters, corpus, kLength, compute, path);
  const tilewise::io::TensorFile file = tilewise::io::read_safetensors(path);

  Model<float> model(config, 1, kLength, "", compute);
  model.forward(parameters, std::span(corpus.bytes).first(kLength));
  std::vector<float> out(static_cast<std::size_t>(kLength * config.q_width()));
  const auto view = [](std::span<const float> data, std::int64_t heads) {
    return tilewise::tensor(data, {1, kLength, heads, 6});
  };
  tilewise::Problem problem;
  problem.causal = 1;
  ASSERT_EQ(file.tensors.size(), 3u);
  problem.q = view(file.find("q")->elements<float>(), config.heads);
  problem.k = view(file.find("k")->elements<float>(), config.kv_heads);
  problem.v = view(file.find("v")->elements<float>(), config.kv_heads);
  problem.out = tilewise::tensor(std::span(out), {1, kLength, config.heads, config.head_dim});
  tilewise::forward(problem);
  const std::vector<float>& expected = model.activations(config.layers - 1).attention;
  for (std::size_t i = 0; i < out.size(); ++i) ASSERT_FLOAT_EQ(out[i], expected[i]) << i;
  EXPECT_THROW(save_attention_inputs(config, parameters, corpus, kLength + 6, compute, path),
               std::runtime_error);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace gpt
