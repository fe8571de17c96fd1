// The shape of the model. Letters are those of the library: B batch, S sequence length, H query
// heads, Hk key/value heads, D head dimension; C is the width of the residual stream, F that of the
// MLP.
#pragma once

#include <cstdint>

namespace gpt {

struct ModelConfig {
  std::int64_t layers = 3;
  std::int64_t width = 128;      // C
  std::int64_t heads = 4;        // H
  std::int64_t kv_heads = 2;     // Hk: two query heads share a key/value head (GQA)
  std::int64_t head_dim = 32;    // D, even: rotary embedding rotates pairs
  std::int64_t mlp_width = 320;  // F

  std::int64_t q_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  std::int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
};

inline constexpr std::int64_t kVocabulary = 256;  // bytes

}  // namespace gpt
