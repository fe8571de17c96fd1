#include "train.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>

#include "adamw.h"

namespace gpt {

double learning_rate_at(std::int64_t step, std::int64_t steps, double peak) {
  constexpr std::int64_t kWarmUp = 20;
  constexpr double kFloor = 0.1;
  const double warm = std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(kWarmUp));
  const double progress =
      static_cast<double>(step) / static_cast<double>(std::max<std::int64_t>(1, steps));
  return peak * warm * (kFloor + (1 - kFloor) * 0.5 * (1 + std::cos(std::numbers::pi * progress)));
}

template <class T>
TrainResult<T> train(const ModelConfig& config, const TrainOptions& options, const Corpus& corpus,
                     const Compute& compute) {
  const auto start = std::chrono::steady_clock::now();
  Parameters<T> parameters(config, options.seed);
  Parameters<T> gradient(config);
  Model<T> model(config, options.sequences, options.length, options.attention_kernel, compute,
                 options.ranks);
  AdamW<T> optimizer(compute, parameters.values.size());
  Random batches(options.seed + 1);
  Batch batch;
  std::vector<double> losses;
  for (std::int64_t step = 0; step < options.steps; ++step) {
    sample_batch(corpus, options.sequences, options.length, batches, &batch);
    if (options.ranks != nullptr) keep_positions(model.positions(), options.length, &batch);
    std::fill(gradient.values.begin(), gradient.values.end(), T(0));
    std::vector<double> loss = {model.step(parameters, batch.inputs, batch.targets, gradient)};
    if (options.ranks != nullptr) {
      options.ranks->sum(loss);
      options.ranks->sum(gradient.values);
    }
    losses.push_back(loss[0]);
    optimizer.step(learning_rate_at(step, options.steps, options.learning_rate), gradient,
                   parameters);
    if (options.on_step) options.on_step(step, losses.back());
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return {std::move(parameters), std::move(losses), elapsed.count(), model.attention().kernel(),
          model.attention().memory()};
}

template TrainResult<float> train(const ModelConfig&, const TrainOptions&, const Corpus&,
                                  const Compute&);
template TrainResult<double> train(const ModelConfig&, const TrainOptions&, const Corpus&,
                                   const Compute&);

}  // namespace gpt
