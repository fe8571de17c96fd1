#include "layers.h"

#include <algorithm>
#include <cmath>

namespace gpt {
namespace {

constexpr std::int64_t kRowBlock = 32;  // tokens of one work item
constexpr std::int64_t kColumnBlock =
    32;  // columns of one work item where the sum runs over tokens
constexpr double kNormEpsilon = 1e-5;

// Returns 1 / sqrt(mean(x^2) + epsilon) of one row.
template <class T>
T inverse_rms(const T* x, std::int64_t width) {
  T sum = 0;
  for (std::int64_t j = 0; j < width; ++j) sum += x[j] * x[j];
  return T(1) / std::sqrt(sum / static_cast<T>(width) + static_cast<T>(kNormEpsilon));
}

template <class T>
T sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

// Handles one row of cross_entropy(): returns -log softmax(logits)[target] and stores the gradient
// times `weight`.
template <class T>
double cross_entropy_row(std::uint8_t target, T weight, T* logits) {
  const T top = *std::max_element(logits, logits + kVocabulary);
  const T target_logit = logits[target];
  T sum = 0;
  for (std::int64_t j = 0; j < kVocabulary; ++j) {
    logits[j] = std::exp(logits[j] - top);
    sum += logits[j];
  }
  for (std::int64_t j = 0; j < kVocabulary; ++j) logits[j] *= weight / sum;
  logits[target] -= weight;
  return std::log(static_cast<double>(sum)) + static_cast<double>(top - target_logit);
}

}  // namespace

template <class T>
void rms_norm(const Compute& compute, const T* x, const T* gain, std::int64_t n, std::int64_t width,
              T* out) {
  compute.parallel_blocks(n, kRowBlock, [=](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const T inverse = inverse_rms(x + row * width, width);
      for (std::int64_t j = 0; j < width; ++j)
        out[row * width + j] = x[row * width + j] * inverse * gain[j];
    }
  });
}

// With r = 1 / rms: dx = r (gain dout) - x r^3 / C sum(gain dout x); dgain = sum over tokens of
// dout x r.
template <class T>
void rms_norm_backward(const Compute& compute, const RmsNormGradient<T>& arrays, std::int64_t n,
                       std::int64_t width) {
  const T* x = arrays.x;
  const T* gain = arrays.gain;
  const T* dout = arrays.dout;
  T* dx = arrays.dx;
  T* dgain = arrays.dgain;
  std::vector<T> inverses(static_cast<std::size_t>(n));
  T* inverse_of = inverses.data();
  compute.parallel_blocks(n, kRowBlock, [=](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const T* x_row = x + row * width;
      const T* dout_row = dout + row * width;
      const T inverse = inverse_rms(x_row, width);
      inverse_of[row] = inverse;
      T sum = 0;
      for (std::int64_t j = 0; j < width; ++j) sum += gain[j] * dout_row[j] * x_row[j];
      const T pull = sum * inverse * inverse * inverse / static_cast<T>(width);
      for (std::int64_t j = 0; j < width; ++j)
        dx[row * width + j] += inverse * gain[j] * dout_row[j] - pull * x_row[j];
    }
  });
  compute.parallel_blocks(width, kColumnBlock, [=](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = 0; row < n; ++row) {
      const std::int64_t at = row * width;
      for (std::int64_t j = first; j < last; ++j)
        dgain[j] += dout[at + j] * x[at + j] * inverse_of[row];
    }
  });
}

template <class T>
Rotary<T>::Rotary(std::int64_t max_positions, std::int64_t head_dim) : pairs_(head_dim / 2) {
  for (std::int64_t position = 0; position < max_positions; ++position) {
    for (std::int64_t pair = 0; pair < pairs_; ++pair) {
      const double frequency =
          std::pow(10000.0, -static_cast<double>(pair) / static_cast<double>(pairs_));
      cosine_.push_back(static_cast<T>(std::cos(static_cast<double>(position) * frequency)));
      sine_.push_back(static_cast<T>(std::sin(static_cast<double>(position) * frequency)));
    }
  }
}

template <class T>
void Rotary<T>::apply(const Compute& compute, const ModelConfig& config, const Rows& rows,
                      Direction direction, T* qkv) const {
  const std::int64_t heads = config.heads + config.kv_heads;  // q and k; v is not rotated
  const T sign = direction == Direction::kForward ? T(1) : T(-1);
  compute.parallel_blocks(rows.n, kRowBlock, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const auto place = static_cast<std::size_t>(row) % rows.positions.size();
      const std::int64_t position = rows.positions[place];
      const T* cosine = cosine_.data() + position * pairs_;
      const T* sine = sine_.data() + position * pairs_;
      for (std::int64_t head = 0; head < heads; ++head) {
        T* low = qkv + row * config.qkv_width() + head * config.head_dim;
        T* high = low + pairs_;
        for (std::int64_t pair = 0; pair < pairs_; ++pair) {
          const T a = low[pair];
          const T b = high[pair];
          low[pair] = a * cosine[pair] - sign * b * sine[pair];
          high[pair] = b * cosine[pair] + sign * a * sine[pair];
        }
      }
    }
  });
}

template <class T>
void swiglu(const Compute& compute, const T* gate_up, std::int64_t n, std::int64_t mlp_width,
            T* out) {
  compute.parallel_blocks(n, kRowBlock, [=](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const T* gate = gate_up + row * 2 * mlp_width;
      const T* up = gate + mlp_width;
      for (std::int64_t j = 0; j < mlp_width; ++j)
        out[row * mlp_width + j] = gate[j] * sigmoid(gate[j]) * up[j];
    }
  });
}

// silu'(x) = s + x s (1 - s) with s = sigmoid(x).
template <class T>
void swiglu_backward(const Compute& compute, const T* gate_up, const T* dout, std::int64_t n,
                     std::int64_t mlp_width, T* dgate_up) {
  compute.parallel_blocks(n, kRowBlock, [=](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const std::int64_t gate_at = row * 2 * mlp_width;
      const std::int64_t up_at = gate_at + mlp_width;
      for (std::int64_t j = 0; j < mlp_width; ++j) {
        const T gate = gate_up[gate_at + j];
        const T s = sigmoid(gate);
        const T d = dout[row * mlp_width + j];
        dgate_up[gate_at + j] = d * gate_up[up_at + j] * (s + gate * s * (T(1) - s));
        dgate_up[up_at + j] = d * gate * s;
      }
    }
  });
}

template <class T>
void embed(const Compute& compute, const T* embedding, const std::uint8_t* tokens, std::int64_t n,
           std::int64_t width, T* out) {
  compute.parallel_blocks(n, kRowBlock, [=](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const T* from = embedding + tokens[row] * width;
      std::copy(from, from + width, out + row * width);
    }
  });
}

template <class T>
void embed_backward(const Compute& compute, const std::uint8_t* tokens, const T* dout,
                    std::int64_t n, std::int64_t width, T* dembedding) {
  compute.parallel_blocks(width, kColumnBlock, [=](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = 0; row < n; ++row) {
      T* to = dembedding + tokens[row] * width;
      for (std::int64_t j = first; j < last; ++j) to[j] += dout[row * width + j];
    }
  });
}

template <class T>
double cross_entropy(const Compute& compute, const std::uint8_t* targets, std::int64_t n,
                     std::int64_t total, T* logits) {
  std::vector<double> losses(static_cast<std::size_t>(n));
  double* loss_of = losses.data();
  const T weight = T(1) / static_cast<T>(total);
  compute.parallel_blocks(n, kRowBlock, [=](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row)
      loss_of[row] = cross_entropy_row(targets[row], weight, logits + row * kVocabulary);
  });
  double sum = 0;
  for (const double loss : losses) sum += loss;
  return sum / static_cast<double>(total);
}

#define GPT_INSTANTIATE(T)                                                                       \
  template void rms_norm(const Compute&, const T*, const T*, std::int64_t, std::int64_t, T*);    \
  template void rms_norm_backward(const Compute&, const RmsNormGradient<T>&, std::int64_t,       \
                                  std::int64_t);                                                 \
  template class Rotary<T>;                                                                      \
  template void swiglu(const Compute&, const T*, std::int64_t, std::int64_t, T*);                \
  template void swiglu_backward(const Compute&, const T*, const T*, std::int64_t, std::int64_t,  \
                                T*);                                                             \
  template void embed(const Compute&, const T*, const std::uint8_t*, std::int64_t, std::int64_t, \
                      T*);                                                                       \
  template void embed_backward(const Compute&, const std::uint8_t*, const T*, std::int64_t,      \
                               std::int64_t, T*);                                                \
  template double cross_entropy(const Compute&, const std::uint8_t*, std::int64_t, std::int64_t, \
                                T*);
GPT_INSTANTIATE(float)
GPT_INSTANTIATE(double)
#undef GPT_INSTANTIATE

}  // namespace gpt
