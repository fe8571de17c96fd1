// The weights, in one flat array with named views. Gradients and the moments of AdamW have the same
// layout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config.h"
#include "matmul.h"

namespace gpt {

// The position of a weight in the flat array.
struct WeightInfo {
  std::string name;
  std::int64_t offset;
  std::int64_t rows;  // 1 for the gain of a normalisation
  std::int64_t columns;
  double initial_deviation;  // of the normal distribution; gains start at 1
  bool is_gain;              // gains are not decayed
};

// Returns the weights in the order of the flat array: the embedding, the layers, the last gain.
std::vector<WeightInfo> list_weights(const ModelConfig& config);

template <class T>
struct LayerWeights {
  T* attention_gain;  // (C)
  Matrix<T> qkv;      // (C, (H + 2 Hk) D)
  Matrix<T> out;      // (H D, C)
  T* mlp_gain;        // (C)
  Matrix<T> gate_up;  // (C, 2 F): gate, then up
  Matrix<T> down;     // (F, C)
};

template <class T>
class Parameters {
 public:
  // Makes parameters that are all zero.
  explicit Parameters(const ModelConfig& config);
  // Draws the parameters from the seed: the same numbers for float and double up to rounding.
  Parameters(const ModelConfig& config, std::uint64_t seed);

  std::vector<T> values;
  const std::vector<WeightInfo>& weights() const { return weights_; }

  Matrix<T> embedding() { return view(0); }  // (256, C); its transpose is the head
  LayerWeights<T> layer(std::int64_t index);
  T* final_gain() { return view(weights_.size() - 1).data; }  // (C)

 private:
  Matrix<T> view(std::size_t index);

  std::vector<WeightInfo> weights_;
};

// Returns a read-only view for the matrix product.
template <class T>
Matrix<const T> read(const Matrix<T>& m) {
  return {m.data, m.rows, m.columns, m.row_stride, m.column_stride};
}

}  // namespace gpt
