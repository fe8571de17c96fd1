// The layers between the matrix products, forward and backward. Rows are tokens; n is their number.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compute.h"
#include "config.h"

namespace gpt {

// RMSNorm: out = x / sqrt(mean(x^2) + 1e-5) * gain. x, out (n, C), gain (C). Zhang and Sennrich
// (2019).
template <class T>
void rms_norm(const Compute& compute, const T* x, const T* gain, std::int64_t n, std::int64_t width,
              T* out);

template <class T>
struct RmsNormGradient {
  const T* x;     // (n, C), the input of the forward pass
  const T* gain;  // (C)
  const T* dout;  // (n, C)
  T* dx;          // (n, C), added to
  T* dgain;       // (C), added to
};
template <class T>
void rms_norm_backward(const Compute& compute, const RmsNormGradient<T>& arrays, std::int64_t n,
                       std::int64_t width);

// Rotary position embedding: pair p of a head is rotated by position * 10000^(-2p/D). Su et al.
// (2021).
template <class T>
class Rotary {
 public:
  Rotary(std::int64_t max_positions, std::int64_t head_dim);

  enum class Direction { kForward, kBackward };  // the gradient is rotated back

  // Rotates the q and k heads of qkv (n, (H + 2 Hk) D) in place. The position of row r is
  // positions[r % positions.size()]: those of the tokens of one sequence.
  struct Rows {
    std::int64_t n;
    std::span<const std::int64_t> positions;
  };
  void apply(const Compute& compute, const ModelConfig& config, const Rows& rows,
             Direction direction, T* qkv) const;

 private:
  std::int64_t pairs_;
  std::vector<T> cosine_;  // (max_positions, D/2)
  std::vector<T> sine_;
};

// SwiGLU: out = silu(gate) * up. gate_up (n, 2 F), out (n, F). Shazeer (2020).
template <class T>
void swiglu(const Compute& compute, const T* gate_up, std::int64_t n, std::int64_t mlp_width,
            T* out);

// Computes dgate_up (n, 2 F) from gate_up and dout (n, F).
template <class T>
void swiglu_backward(const Compute& compute, const T* gate_up, const T* dout, std::int64_t n,
                     std::int64_t mlp_width, T* dgate_up);

// out (n, C) becomes the row of the embedding (256, C) for each token.
template <class T>
void embed(const Compute& compute, const T* embedding, const std::uint8_t* tokens, std::int64_t n,
           std::int64_t width, T* out);

// dembedding (256, C) += dout (n, C), summed in the order of the tokens.
template <class T>
void embed_backward(const Compute& compute, const std::uint8_t* tokens, const T* dout,
                    std::int64_t n, std::int64_t width, T* dembedding);

// Returns what n tokens contribute to the mean of -log softmax(logits)[target] over `total` tokens.
// logits (n, 256) become the gradient of that mean. The sum over the tokens is in double, in order.
template <class T>
double cross_entropy(const Compute& compute, const std::uint8_t* targets, std::int64_t n,
                     std::int64_t total, T* logits);

}  // namespace gpt
