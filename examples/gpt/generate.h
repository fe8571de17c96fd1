// Generates text with a trained model, one byte at a time, with a key/value cache.
#pragma once

#include <cstdint>
#include <string>
#include <tilewise/tilewise.hpp>
#include <vector>

#include "compute.h"
#include "config.h"
#include "layers.h"
#include "matmul.h"
#include "parameters.h"

namespace gpt {

// Feeds bytes to the model in order. Attention is one query against a cache of `capacity` keys, of
// which seqused_k are in use, so one plan serves every step.
template <class T>
class Decoder {
 public:
  // `parameters` and `compute` must outlive the object.
  Decoder(const ModelConfig& config, Parameters<T>& parameters, std::int64_t capacity,
          const Compute& compute);

  // Returns the logits (256) of the byte after `token`. Throws std::length_error after `capacity`
  // bytes.
  const std::vector<T>& feed(std::uint8_t token);

  std::int64_t position() const { return position_; }
  std::int64_t capacity() const { return capacity_; }

 private:
  void attend(std::size_t layer);
  void project(const std::vector<T>& x, const Matrix<T>& w, std::vector<T>& y);
  tilewise::Problem problem(const T* q, const T* k, const T* v);

  ModelConfig config_;
  Parameters<T>& parameters_;
  const Compute& compute_;
  std::int64_t capacity_;
  std::int64_t position_ = 0;
  std::int64_t keys_in_use_ = 0;
  MatrixProduct<T> product_;
  Rotary<T> rotary_;
  std::vector<std::vector<T>> keys_;           // per layer (capacity, Hk, D)
  std::vector<std::vector<T>> values_;         // per layer (capacity, Hk, D)
  std::vector<T> residual_, normed_, branch_;  // (C)
  std::vector<T> qkv_, attention_, gate_up_, mlp_, logits_;
  tilewise::Plan plan_;
  tilewise::Workspace workspace_;
};

struct GenerateOptions {
  std::int64_t bytes = 200;
  double temperature = 0.7;
  std::uint64_t seed = 1;
};

// Returns the bytes that follow the prompt.
template <class T>
std::string generate(Decoder<T>& decoder, const std::string& prompt,
                     const GenerateOptions& options);

}  // namespace gpt
