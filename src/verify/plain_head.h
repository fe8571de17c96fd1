// Plain attention of one query head, row by row: the arithmetic of verify/plain.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "math/float8.h"
#include "math/integer.h"
#include "math/philox.h"
#include "problem/score_tile.h"
#include "verify/plain.h"
#include "verify/tensor.h"

namespace tilewise::verify {

using problem::Problem;
using problem::Sequence;
using problem::View;

inline double load(const View& view, std::int64_t offset) {
  tilewise_tensor tensor = {};
  tensor.data = view.data;
  tensor.dtype = view.dtype;
  return read_element(tensor, offset);
}
inline void store(const View& view, std::int64_t offset, double x) {
  tilewise_tensor tensor = {};
  tensor.data = view.data;
  tensor.dtype = view.dtype;
  write_element(tensor, offset, x);
}

// Returns the index of the i-th summand of a sum of `count` summands.
inline std::int64_t summand(SumOrder order, std::int64_t i, std::int64_t count) {
  const std::int64_t first = count * (order / 2) / (kSumOrders / 2);
  const std::int64_t position = order % 2 == 0 ? i : count - 1 - i;
  return (first + position) % (count > 0 ? count : 1);
}

// One query head of one sequence. T is the arithmetic type; kRounds says whether matrices are
// rounded to the inputs' dtype between the passes.
template <class T, bool kRounds>
class PlainHead {
 public:
  // fp8_probs: what forward rounds probs to beside the inputs' dtype (verify/plain.h).
  PlainHead(const Problem& problem, const Sequence& sequence, std::int64_t head, SumOrder order,
            problem::Fp8Probs fp8_probs = problem::Fp8Probs::kFp32)
      : problem_(problem),
        sequence_(sequence),
        head_(head),
        kv_head_(head / problem.group),
        order_(order),
        fp8_probs_(fp8_probs),
        dropout_(
            math::dropout_rule(problem.dropout_p, problem.dropout_seed, problem.dropout_offset)),
        bands_(static_cast<std::size_t>(problem::max_bands(problem))) {
    bands_.resize(
        static_cast<std::size_t>(problem::sequence_bands(problem, sequence, head, bands_.data())));
    const std::size_t k_len = static_cast<std::size_t>(sequence.k_len);
    keys_ = gather_keys(problem.k, problem.head_dim);
    values_ = gather_keys(problem.v, problem.value_dim);
    columns_.resize(keys_.size());
    for (std::int64_t j = 0; j < sequence.k_len; ++j) {
      for (std::int64_t c = 0; c < problem.head_dim; ++c)
        columns_[at(c * sequence.k_len + j)] = keys_[at(j * problem.head_dim + c)];
    }
    products_.resize(k_len);
    visible_.resize(k_len);
    scores_.resize(k_len);
    before_.resize(k_len);
    slopes_.resize(k_len);
    probs_.resize(k_len);
    dscores_.resize(k_len);
    if (problem.sink.present()) {
      sink_ = static_cast<T>(load(problem.sink, problem.sink.offset(0, head, 0)));
    }
  }

  // Computes probs and lse of a row, then its out.
  void forward(std::int64_t row, T* out) {
    find_visible(row);
    const std::vector<T> query = gather_row(problem_.q, row, problem_.head_dim);
    multiply(query.data());
    for (std::int64_t j = 0; j < sequence_.k_len; ++j) {
      if (visible_[at(j)]) scores_[at(j)] = score(row, j);
    }
    softmax();
    for (std::int64_t c = 0; c < problem_.value_dim; ++c) out[c] = T(0);
    for (std::int64_t i = 0; i < sequence_.k_len; ++i) {
      const std::int64_t j = summand(order_, i, sequence_.k_len);
      if (!visible_[at(j)]) continue;
      const T prob = rounded_for_fp8(round(probs_[at(j)] * dropout_factor(row, j)));
      const T* const value = values_.data() + j * problem_.value_dim;
      for (std::int64_t c = 0; c < problem_.value_dim; ++c) out[c] += prob * value[c];
    }
  }

  // After forward(row), replaces its probabilities by those of the lse that the backward pass gets,
  // which is rounded to its dtype.
  void recompute_probs(std::int64_t row) {
    lse_ = static_cast<T>(load(problem_.lse, statistic(problem_.lse, row)));
    if (order_ % 2 == 1 && lse_ != -kInfinity) lse_ = std::nextafter(lse_, kInfinity);
    for (std::int64_t j = 0; j < sequence_.k_len; ++j) {
      if (visible_[at(j)]) probs_[at(j)] = std::exp(scores_[at(j)] - lse_);
    }
  }

  // After recompute_probs(row), computes dS of every key (dBias)
  // and its sums. dquery (D), dkeys (Sk, D) and dvalues (Sk, Dv) are added to.
  void backward(std::int64_t row, T* dquery, T* dkeys, T* dvalues) {
    const std::vector<T> query = gather_row(problem_.q, row, problem_.head_dim);
    const std::vector<T> dout = gather_row(problem_.dout, row, problem_.value_dim);
    const std::vector<T> out = gather_row(problem_.out, row, problem_.value_dim);
    delta_ = dot(out.data(), dout.data(), problem_.value_dim, T(0));
    if (problem_.dlse.present())
      delta_ -= static_cast<T>(load(problem_.dlse, statistic(problem_.dlse, row)));
    const T scale = static_cast<T>(problem_.scale);
    for (std::int64_t j = 0; j < sequence_.k_len; ++j) {
      dscores_[at(j)] = T(0);
      if (!visible_[at(j)]) continue;
      const T prob = round(probs_[at(j)] * dropout_factor(row, j));
      for (std::int64_t c = 0; c < problem_.value_dim; ++c) {
        dvalues[j * problem_.value_dim + c] += prob * dout[static_cast<std::size_t>(c)];
      }
      const T dscore = probs_[at(j)] * dprob_above_delta(row, j, dout.data());
      dscores_[at(j)] = probs_[at(j)] == T(0) ? T(0) : dscore;
      const T dproduct = round(function_gradient(row, j, dscores_[at(j)]) * slopes_[at(j)]);
      if (dproduct == T(0)) continue;
      const T* const key = keys_.data() + j * problem_.head_dim;
      for (std::int64_t c = 0; c < problem_.head_dim; ++c) {
        dquery[c] += scale * dproduct * key[c];
        dkeys[j * problem_.head_dim + c] += scale * dproduct * query[static_cast<std::size_t>(c)];
      }
    }
  }

  T lse() const { return lse_; }
  T delta() const { return delta_; }
  T sink() const { return sink_; }
  T dbias(std::int64_t key) const { return round(dscores_[at(key)]); }

 private:
  static std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

  // Floats are computed in double, which holds their product exactly: there is one additional
  // rounding in 2^29 sums, and no library call where the compiler may not assume the instruction.
  static T fused(T a, T b, T sum) {
    if constexpr (std::is_same_v<T, float>) {
      return static_cast<float>(double{a} * double{b} + double{sum});
    } else {
      return std::fma(a, b, sum);
    }
  }

  // Returns start + a.b; the backwards orders use fused operations, as a processor that has them
  // would.
  T dot(const T* a, const T* b, std::int64_t count, T start) const {
    const std::int64_t first = summand(order_ & ~1, 0, count);
    const auto add = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) start += a[c] * b[c];
    };
    const auto add_backwards = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = end - 1; c >= begin; --c) start = fused(a[c], b[c], start);
    };
    if (order_ % 2 == 0) {
      add(first, count);
      add(0, first);
    } else {
      add_backwards(0, first);
      add_backwards(first, count);
    }
    return start;
  }

  // Computes the products of a row with the keys that it may see. Each is summed as dot() does,
  // several at a time.
  void multiply(const T* query) {
    constexpr std::int64_t kBeside = 32;
    const std::int64_t k_len = sequence_.k_len;
    const std::int64_t dim = problem_.head_dim;
    for (std::int64_t begin = 0; begin < k_len; begin += kBeside) {
      const std::int64_t count = math::min(kBeside, k_len - begin);
      const auto seen = visible_.begin() + begin;
      if (std::find(seen, seen + count, true) == seen + count) continue;
      T sums[kBeside] = {};
      for (std::int64_t i = 0; i < dim; ++i) {
        const std::int64_t c = summand(order_, i, dim);
        const T* const column = columns_.data() + c * k_len + begin;
        for (std::int64_t j = 0; j < count; ++j)
          sums[j] = order_ % 2 == 0 ? sums[j] + query[c] * column[j]
                                    : fused(query[c], column[j], sums[j]);
      }
      std::copy(sums, sums + count, products_.begin() + begin);
    }
  }

  // Returns dP - delta. Where dP is not stored in between, this is one sum in the backwards order.
  T dprob_above_delta(std::int64_t row, std::int64_t key, const T* dout) const {
    const T* const value = values_.data() + key * problem_.value_dim;
    const bool stored =
        kRounds && (problem_.dtype == TILEWISE_BF16 || problem_.dtype == TILEWISE_FP16);
    if (order_ % 2 == 1 && !stored) {
      std::vector<T> factors(dout, dout + problem_.value_dim);
      for (T& factor : factors) factor *= dropout_factor(row, key);
      return dot(factors.data(), value, problem_.value_dim, -delta_);
    }
    return round(dot(dout, value, problem_.value_dim, T(0)) * dropout_factor(row, key)) - delta_;
  }

  T round(T x) const {
    return kRounds ? static_cast<T>(rounded(problem_.dtype, static_cast<double>(x))) : x;
  }

  // Gathers (Sk, width) of k or v.
  std::vector<T> gather_keys(const View& view, std::int64_t width) const {
    std::vector<T> result(at(sequence_.k_len * width));
    for (std::int64_t j = 0; j < sequence_.k_len; ++j) {
      const std::int64_t row =
          problem_.key_offset(view, sequence_.batch, kv_head_, sequence_.k_start + j);
      for (std::int64_t c = 0; c < width; ++c)
        result[at(j * width + c)] = static_cast<T>(load(view, row + c * view.column));
    }
    return result;
  }
  std::vector<T> gather_row(const View& view, std::int64_t row, std::int64_t width) const {
    std::vector<T> result(at(width));
    const std::int64_t first = view.offset(sequence_.batch, head_, sequence_.q_start + row);
    for (std::int64_t c = 0; c < width; ++c)
      result[at(c)] = static_cast<T>(load(view, first + c * view.column));
    return result;
  }

  std::int64_t statistic(const View& view, std::int64_t row) const {
    return view.offset(sequence_.batch, head_, sequence_.q_start + row);
  }

  void find_visible(std::int64_t row) {
    visible_.assign(visible_.size(), false);
    for (const math::Band& band : bands_) {
      const math::KeyRange keys = math::visible_keys(band, row);
      for (std::int64_t j = math::max(keys.begin, 0); j < keys.end; ++j) visible_[at(j)] = true;
    }
    if (!problem_.mask.present()) return;
    const std::uint8_t* const mask = static_cast<const std::uint8_t*>(problem_.mask.data);
    for (std::int64_t j = 0; j < sequence_.k_len; ++j) {
      if (mask[problem_.mask.offset(sequence_.batch, head_, row, j)] == 0) visible_[at(j)] = false;
    }
  }

  // Returns the score of a key for the row whose products are in products_.
  T score(std::int64_t row, std::int64_t key) {
    T score = static_cast<T>(problem_.scale) * products_[at(key)];
    slopes_[at(key)] = T(1);
    if (problem_.softcap > 0) {
      const T ratio = score / static_cast<T>(problem_.softcap);
      // 1 - tanh^2 would lose all that a saturated score has left; 1 / cosh^2 does not.
      const T inverse = T(1) / std::cosh(ratio);
      slopes_[at(key)] = inverse * inverse;
      score = static_cast<T>(problem_.softcap) * std::tanh(ratio);
    }
    before_[at(key)] = score;
    score = function_of(row, key, score);
    if (problem_.bias.present()) {
      const std::int64_t offset = problem_.bias.offset(sequence_.batch, head_, row, key);
      score += static_cast<T>(load(problem_.bias, offset));
    }
    if (problem_.alibi_slopes.present()) {
      const View& slopes = problem_.alibi_slopes;
      const T slope = static_cast<T>(load(slopes, slopes.offset(sequence_.batch, head_, 0)));
      score -= slope * static_cast<T>(std::abs(row + sequence_.diagonal - key));
    }
    return round(score);
  }

  // The number that a score function computes with: long double becomes double.
  using Number = std::conditional_t<std::is_same_v<T, float>, float, double>;

  tilewise_score_tile tile_of(std::int64_t row, std::int64_t key) const {
    return problem::score_tile(problem_, sequence_, head_, {row, row + 1}, {key, key + 1},
                               std::is_same_v<T, float> ? TILEWISE_FP32 : TILEWISE_FP64);
  }
  T function_of(std::int64_t row, std::int64_t key, T score) const {
    if (!problem_.has_score_function()) return score;
    const tilewise_score_tile tile = tile_of(row, key);
    Number number = static_cast<Number>(score);
    problem_.score_function.forward(problem_.score_function.user_data, &tile, &number);
    return static_cast<T>(number);
  }
  // Returns the gradient of the score before the function.
  T function_gradient(std::int64_t row, std::int64_t key, T gradient) const {
    if (!problem_.has_score_function() || gradient == T(0)) return gradient;
    const tilewise_score_tile tile = tile_of(row, key);
    const Number before = static_cast<Number>(before_[at(key)]);
    Number number = static_cast<Number>(gradient);
    problem_.score_function.backward(problem_.score_function.user_data, &tile, &before, &number);
    return static_cast<T>(number);
  }

  // A score of -infinity is masked: its key counts as not visible from here on.
  void softmax() {
    T largest = -kInfinity;
    for (std::size_t j = 0; j < scores_.size(); ++j) {
      if (scores_[j] == -kInfinity) visible_[j] = false;
      if (visible_[j] && scores_[j] > largest) largest = scores_[j];
    }
    const T max = sink_ > largest ? sink_ : largest;
    T sum = sink_ == -kInfinity ? T(0) : std::exp(sink_ - max);
    for (std::int64_t i = 0; i < sequence_.k_len; ++i) {
      const std::size_t j = at(summand(order_, i, sequence_.k_len));
      if (!visible_[j]) continue;
      probs_[j] = std::exp(scores_[j] - (max == -kInfinity ? T(0) : max));
      sum += probs_[j];
    }
    // The inverse is one number for all keys of equal scores, and so is its rounding.
    const T inverse = T(1) / sum;
    for (T& prob : probs_) prob = order_ % 2 == 0 ? prob / sum : prob * inverse;
    lse_ = sum == T(0) ? -kInfinity : max + std::log(sum);
    const T largest_prob = fp8_probs_ == problem::Fp8Probs::kE4M3 ? T(256) : T(1);
    fp8_factor_ = largest == -kInfinity ? T(1) : largest_prob * sum / std::exp(largest - max);
  }

  // Rounds a prob as kernels for fp8 do, which scale it so that the row's largest is a fixed
  // number.
  T rounded_for_fp8(T prob) const {
    if (fp8_probs_ == problem::Fp8Probs::kFp32) return prob;
    const float scaled = static_cast<float>(prob * fp8_factor_);
    const T rounded = fp8_probs_ == problem::Fp8Probs::kE4M3
                          ? math::load<T>(math::to_float8<math::Float8E4M3>(scaled))
                          : math::load<T>(math::to_float16(scaled));
    return rounded / fp8_factor_;
  }

  T dropout_factor(std::int64_t row, std::int64_t key) const {
    if (problem_.dropout_p == 0) return T(1);
    const problem::DropoutOrigin origin = problem::dropout_origin(problem_, sequence_.batch, head_);
    const bool keeps =
        math::dropout_keeps(dropout_, origin.head_index, origin.row + row, origin.key + key);
    return keeps ? static_cast<T>(dropout_.keep_scale) : T(0);
  }

  static constexpr T kInfinity = std::numeric_limits<T>::infinity();

  const Problem& problem_;
  const Sequence& sequence_;
  std::int64_t head_;
  std::int64_t kv_head_;
  SumOrder order_;
  problem::Fp8Probs fp8_probs_;
  math::DropoutRule dropout_;
  std::vector<math::Band> bands_;
  std::vector<T> keys_;      // (Sk, D)
  std::vector<T> columns_;   // (D, Sk): the same numbers
  std::vector<T> values_;    // (Sk, Dv)
  std::vector<T> products_;  // (Sk): products of the row's query
  std::vector<bool> visible_;
  std::vector<T> scores_;   // (Sk); where not visible, scores and probs are undefined
  std::vector<T> before_;   // (Sk), before the score function
  std::vector<T> slopes_;   // (Sk): d score / d (scale * q.k)
  std::vector<T> probs_;    // (Sk), without dropout
  std::vector<T> dscores_;  // (Sk), the gradients of the scores
  T sink_ = -kInfinity;
  T lse_ = T(0);
  T fp8_factor_ = T(1);  // from a prob to 256 exp(score - max), or to exp(score - max)
  T delta_ = T(0);
};

}  // namespace tilewise::verify
