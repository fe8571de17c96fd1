// The model: embedding, pre-norm blocks of causal GQA attention and a gated MLP, and a head tied to
// the embedding. Forward and backward are written by hand.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attention.h"
#include "compute.h"
#include "config.h"
#include "layers.h"
#include "matmul.h"
#include "parameters.h"
#include "ranks.h"

namespace gpt {

// The activations of one layer that the forward pass saves for the backward pass. n = B S tokens.
template <class T>
struct LayerActivations {
  std::vector<T> input;             // (n, C): the residual stream before the layer
  std::vector<T> attention_normed;  // (n, C)
  std::vector<T> qkv;               // (n, (H + 2 Hk) D), q and k rotated
  std::vector<T> attention;         // (n, H D)
  std::vector<T> lse;               // (B, H, S)
  std::vector<T> middle;            // (n, C): the residual stream after attention
  std::vector<T> mlp_normed;        // (n, C)
  std::vector<T> gate_up;           // (n, 2 F)
  std::vector<T> mlp;               // (n, F)
};

// A model with activations for batches of one shape. Several objects may share one set of
// parameters. An object may not be used by several threads at once, because it owns the
// activations.
template <class T>
class Model {
 public:
  // `attention_kernel` is that of Attention. With `ranks`, this object has one rank's tokens of
  // every sequence: S below is then their number. `compute` and `ranks` must outlive the object.
  Model(const ModelConfig& config, std::int64_t batch, std::int64_t length,
        const std::string& attention_kernel, const Compute& compute, const Ranks* ranks = nullptr);

  // Returns the positions in a sequence of the S tokens.
  const std::vector<std::int64_t>& positions() const { return positions_; }

  // Returns the logits (B S, 256) of the next byte at every position of tokens (B, S). They are
  // valid until the next call.
  std::span<const T> forward(Parameters<T>& parameters, std::span<const std::uint8_t> tokens);

  // Returns the mean cross-entropy in nats per byte, and adds its gradient to `gradient`. targets
  // (B, S). With ranks, both are what this rank contributes to those of the whole sequences.
  double step(Parameters<T>& parameters, std::span<const std::uint8_t> tokens,
              std::span<const std::uint8_t> targets, Parameters<T>& gradient);

  const LayerActivations<T>& activations(std::int64_t layer) const {
    return layers_[static_cast<std::size_t>(layer)];
  }
  const Attention<T>& attention() const { return attention_; }

 private:
  void layer_forward(const LayerWeights<T>& weights, LayerActivations<T>& kept, T* output);
  void backward(Parameters<T>& parameters, std::span<const std::uint8_t> tokens,
                Parameters<T>& gradient);
  void mlp_backward(const LayerWeights<T>& weights, const LayerActivations<T>& kept,
                    const LayerWeights<T>& gradient);
  void attention_backward(const LayerWeights<T>& weights, const LayerActivations<T>& kept,
                          const LayerWeights<T>& gradient);
  // Computes y = x w for x (n, rows of w).
  void project(const std::vector<T>& x, const Matrix<T>& w, std::vector<T>& y);
  // The gradients of project(): dx = dy w^T and dw += x^T dy.
  struct ProjectionGradient {
    const std::vector<T>& x;
    Matrix<T> w;
    const std::vector<T>& dy;
    std::vector<T>& dx;
    Matrix<T> dw;
  };
  void project_backward(const ProjectionGradient& arrays);
  void add(const std::vector<T>& x, const std::vector<T>& y, T* out);

  ModelConfig config_;
  std::vector<std::int64_t> positions_;  // (S)
  std::int64_t tokens_;                  // n = B S
  std::int64_t all_tokens_;              // of all ranks
  const Compute& compute_;
  Attention<T> attention_;
  MatrixProduct<T> product_;
  Rotary<T> rotary_;
  std::vector<LayerActivations<T>> layers_;
  std::vector<T> final_input_;   // (n, C)
  std::vector<T> final_normed_;  // (n, C)
  std::vector<T> logits_;        // (n, 256); the gradient of the loss after cross_entropy()
  std::vector<T> branch_;     // (n, C), the update of a layer to the residual stream, and gradients
  std::vector<T> dresidual_;  // (n, C)
  std::vector<T> dattention_;  // (n, H D)
  std::vector<T> dqkv_;        // (n, (H + 2 Hk) D)
  std::vector<T> dmlp_;        // (n, F)
  std::vector<T> dgate_up_;    // (n, 2 F)
};

}  // namespace gpt
