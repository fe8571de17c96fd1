// Trains a model once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "compute.h"
#include "data.h"
#include "model.h"
#include "parameters.h"
#include "ranks.h"

namespace gpt {

struct TrainOptions {
  std::string attention_kernel;  // empty: the library's choice
  std::int64_t steps = 100;
  std::int64_t sequences = 4;  // B
  std::int64_t length = 256;   // S
  double learning_rate = 3e-3;
  std::uint64_t seed = 1;        // of the weights and of the batches
  const Ranks* ranks = nullptr;  // this process is one of them; all pass the same options
  std::function<void(std::int64_t step, double loss)> on_step;
};

template <class T>
struct TrainResult {
  Parameters<T> parameters;
  std::vector<double> losses;  // (steps), nats per byte, of each batch before its update
  double seconds;
  std::string forward_kernel;
  AttentionMemory memory;
};

// Returns the learning rate of a step: linear warm-up, then half a cosine down to a tenth.
double learning_rate_at(std::int64_t step, std::int64_t steps, double peak);

// Trains. The same seed, options and corpus give the same bits for any number of threads, on every
// rank.
template <class T>
TrainResult<T> train(const ModelConfig& config, const TrainOptions& options, const Corpus& corpus,
                     const Compute& compute);

}  // namespace gpt
