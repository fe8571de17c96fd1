#include "parameters.h"

#include <cmath>

#include "random.h"

namespace gpt {
namespace {

constexpr std::size_t kWeightsPerLayer = 6;

}  // namespace

std::vector<WeightInfo> list_weights(const ModelConfig& config) {
  std::vector<WeightInfo> weights;
  std::int64_t offset = 0;
  const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t columns,
                       double deviation) {
    weights.push_back({name, offset, rows, columns, deviation, rows == 1});
    offset += rows * columns;
  };
  const std::int64_t width = config.width;
  constexpr double kDeviation = 0.05;
  // The residual stream sums two outputs per layer; this factor keeps its variance independent of
  // the depth (GPT-2).
  const double into_residual = kDeviation / std::sqrt(2.0 * static_cast<double>(config.layers));
  add("embedding", kVocabulary, width, kDeviation);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = "layer" + std::to_string(layer) + ".";
    add(prefix + "attention_gain", 1, width, 0);
    add(prefix + "qkv", width, config.qkv_width(), kDeviation);
    add(prefix + "out", config.q_width(), width, into_residual);
    add(prefix + "mlp_gain", 1, width, 0);
    add(prefix + "gate_up", width, 2 * config.mlp_width, kDeviation);
    add(prefix + "down", config.mlp_width, width, into_residual);
  }
  add("final_gain", 1, width, 0);
  return weights;
}

template <class T>
Parameters<T>::Parameters(const ModelConfig& config) : weights_(list_weights(config)) {
  const WeightInfo& last = weights_.back();
  values.assign(static_cast<std::size_t>(last.offset + last.rows * last.columns), T(0));
}

template <class T>
Parameters<T>::Parameters(const ModelConfig& config, std::uint64_t seed) : Parameters(config) {
  Random random(seed);
  for (const WeightInfo& weight : weights_) {
    T* first = values.data() + weight.offset;
    for (std::int64_t i = 0; i < weight.rows * weight.columns; ++i) {
      first[i] = weight.is_gain ? T(1) : static_cast<T>(weight.initial_deviation * random.normal());
    }
  }
}

template <class T>
Matrix<T> Parameters<T>::view(std::size_t index) {
  const WeightInfo& weight = weights_[index];
  return matrix(values.data() + weight.offset, weight.rows, weight.columns);
}

template <class T>
LayerWeights<T> Parameters<T>::layer(std::int64_t index) {
  const std::size_t first = 1 + static_cast<std::size_t>(index) * kWeightsPerLayer;
  return {view(first).data,     view(first + 1), view(first + 2),
          view(first + 3).data, view(first + 4), view(first + 5)};
}

template class Parameters<float>;
template class Parameters<double>;

}  // namespace gpt
