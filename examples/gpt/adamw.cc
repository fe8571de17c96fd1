#include "adamw.h"

#include <algorithm>
#include <cmath>

namespace gpt {
namespace {

constexpr std::int64_t kBlock =
    16384;  // weights of one work item, and of one partial sum of the norm

}  // namespace

template <class T>
AdamW<T>::AdamW(const Compute& compute, std::size_t weights, const AdamWOptions& options)
    : compute_(compute), options_(options), first_moment_(weights), second_moment_(weights) {}

template <class T>
double AdamW<T>::step(double learning_rate, const Parameters<T>& gradient,
                      Parameters<T>& parameters) {
  ++steps_;
  const double gradient_norm = norm(gradient.values);
  const double scale =
      gradient_norm > options_.clip_norm ? options_.clip_norm / gradient_norm : 1.0;
  for (const WeightInfo& weight : parameters.weights()) {
    update(weight, learning_rate, scale, gradient.values.data(), parameters.values.data());
  }
  return gradient_norm;
}

// Adds up partial sums of fixed blocks in order, so the result is the same for any number of
// threads.
template <class T>
double AdamW<T>::norm(const std::vector<T>& values) const {
  const std::int64_t n = static_cast<std::int64_t>(values.size());
  std::vector<double> partial(static_cast<std::size_t>((n + kBlock - 1) / kBlock));
  compute_.parallel_blocks(n, kBlock, [&](std::int64_t first, std::int64_t last) {
    double sum = 0;
    for (std::int64_t i = first; i < last; ++i) {
      const double value = static_cast<double>(values[static_cast<std::size_t>(i)]);
      sum += value * value;
    }
    partial[static_cast<std::size_t>(first / kBlock)] = sum;
  });
  double total = 0;
  for (const double sum : partial) total += sum;
  return std::sqrt(total);
}

template <class T>
void AdamW<T>::update(const WeightInfo& weight, double learning_rate, double gradient_scale,
                      const T* gradient, T* values) {
  const double steps = static_cast<double>(steps_);
  const T beta1 = static_cast<T>(options_.beta1);
  const T beta2 = static_cast<T>(options_.beta2);
  const T scale = static_cast<T>(gradient_scale);
  const T epsilon = static_cast<T>(options_.epsilon);
  // The moments start at 0; dividing by these factors removes that bias.
  const T step_size = static_cast<T>(learning_rate / (1.0 - std::pow(options_.beta1, steps)));
  const T second_scale = static_cast<T>(1.0 / (1.0 - std::pow(options_.beta2, steps)));
  const T keep = static_cast<T>(weight.is_gain ? 1.0 : 1.0 - learning_rate * options_.weight_decay);
  T* first_moment = first_moment_.data();
  T* second_moment = second_moment_.data();
  const std::int64_t offset = weight.offset;
  compute_.parallel_blocks(
      weight.rows * weight.columns, kBlock, [=](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = offset + first; i < offset + last; ++i) {
          const T g = scale * gradient[i];
          first_moment[i] = beta1 * first_moment[i] + (T(1) - beta1) * g;
          second_moment[i] = beta2 * second_moment[i] + (T(1) - beta2) * g * g;
          values[i] = keep * values[i] - step_size * first_moment[i] /
                                             (std::sqrt(second_moment[i] * second_scale) + epsilon);
        }
      });
}

template class AdamW<float>;
template class AdamW<double>;

}  // namespace gpt
