// AdamW (Loshchilov and Hutter, 2019), with the gradient first clipped to a norm.
#pragma once

#include <cstdint>
#include <vector>

#include "compute.h"
#include "parameters.h"

namespace gpt {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // of matrices; gains do not decay
  double clip_norm = 1.0;
};

template <class T>
class AdamW {
 public:
  AdamW(const Compute& compute, std::size_t weights, const AdamWOptions& options = {});

  // Takes one step with this learning rate. Returns the norm of the gradient before clipping.
  double step(double learning_rate, const Parameters<T>& gradient, Parameters<T>& parameters);

 private:
  double norm(const std::vector<T>& values) const;
  void update(const WeightInfo& weight, double learning_rate, double gradient_scale,
              const T* gradient, T* values);

  const Compute& compute_;
  AdamWOptions options_;
  std::int64_t steps_ = 0;
  std::vector<T> first_moment_;
  std::vector<T> second_moment_;
};

}  // namespace gpt
