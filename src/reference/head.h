// One query head of one sequence: which keys its rows see, and its scores. The rules are those of
// src/math; this class applies them to the tensors (mask, bias, slopes, sink) of the problem.
#pragma once

#include "math/integer.h"
#include "math/philox.h"
#include "math/score_rule.h"
#include "math/softmax_state.h"
#include "problem/score_tile.h"
#include "reference/linear.h"
#include "reference/memory.h"

namespace tilewise::reference {

using math::KeyRange;

template <class T>
inline constexpr T kMaskedScore = -math::Limits<T>::kInfinity;

// The bands of a head, and memory for the visibility of the keys of one row of a tile.
struct MaskBuffers {
  const math::Band* bands;  // (band_count)
  std::int64_t band_count;
  std::uint8_t* visible;  // (widest key range)
};

template <class T, class Counter>
class Head {
 public:
  Head(const problem::Problem& problem, const problem::Sequence& sequence, std::int64_t head,
       MaskBuffers mask, Counter* counter)
      : problem_(problem),
        sequence_(sequence),
        head_(head),
        mask_(mask),
        counter_(counter),
        scale_(static_cast<T>(problem.scale)),
        cap_(static_cast<T>(problem.softcap)),
        dropout_(
            math::dropout_rule(problem.dropout_p, problem.dropout_seed, problem.dropout_offset)),
        origin_(problem::dropout_origin(problem, sequence.batch, head)) {
    const problem::View& slopes = problem.alibi_slopes;
    if (slopes.present()) slope_ = load_element<T>(slopes, slopes.offset(sequence.batch, head, 0));
    if (problem.sink.present())
      sink_ = load_element<T>(problem.sink, problem.sink.offset(0, head, 0));
    if (problem.phi.present()) {
      const T phi = load_element<T>(problem.phi, problem.phi.offset(0, head, 0));
      if (math::is_finite(phi)) phi_ = phi;
    }
  }

  std::int64_t head_dim() const { return problem_.head_dim; }
  std::int64_t value_dim() const { return problem_.value_dim; }
  T scale() const { return scale_; }
  T sink() const { return sink_; }  // -inf if there is none
  T phi() const { return phi_; }    // 0 if there is none

  // True if no row of `rows` sees a key of `keys` through any band, so that the tile can be
  // skipped.
  bool skips(KeyRange rows, KeyRange keys) const {
    for (std::int64_t b = 0; b < mask_.band_count; ++b) {
      if (math::classify(mask_.bands[b], rows.begin, rows.end, keys.begin, keys.end) !=
          math::TileClass::kEmpty) {
        return false;
      }
    }
    return true;
  }

  // visible[j - keys.begin] = whether `row` sees key j. Keys that several slices cover are seen
  // once: the slices are ORed.
  void mark_visible(std::int64_t row, KeyRange keys) const {
    std::memset(mask_.visible, 0, static_cast<std::size_t>(keys.end - keys.begin));
    for (std::int64_t b = 0; b < mask_.band_count; ++b) {
      const KeyRange seen = math::visible_keys(mask_.bands[b], row);
      const std::int64_t begin = math::max(seen.begin, keys.begin);
      const std::int64_t end = math::min(seen.end, keys.end);
      if (begin < end)
        std::memset(mask_.visible + (begin - keys.begin), 1, static_cast<std::size_t>(end - begin));
    }
    const problem::View& mask = problem_.mask;
    if (!mask.present()) return;
    const std::uint8_t* mask_row =
        static_cast<const std::uint8_t*>(mask.data) + mask.offset(sequence_.batch, head_, row);
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      if (mask_row[j * mask.column] == 0) mask_.visible[j - keys.begin] = 0;
    }
    counter_->read(keys.end - keys.begin, 1);
  }

  bool visible(KeyRange keys, std::int64_t key) const {
    return mask_.visible[key - keys.begin] != 0;
  }

  // Turns a product q.k into the score. `scaled`, if given, becomes scale * q.k.
  T score(std::int64_t row, std::int64_t key, T product, T* scaled = nullptr) const {
    T score = scale_ * product;
    if (scaled != nullptr) *scaled = score;
    score = capped(score);
    if (problem_.has_score_function()) {
      const tilewise_score_tile pair = tile_of(row, key);
      problem_.score_function.forward(problem_.score_function.user_data, &pair, &score);
    }
    const problem::View& bias = problem_.bias;
    if (bias.present()) {
      score += load_element<T>(bias, bias.offset(sequence_.batch, head_, row, key));
      counter_->read(1, problem::dtype_size(bias.dtype));
    }
    if (problem_.alibi_slopes.present()) {
      score += math::alibi(slope_, static_cast<T>(row + sequence_.diagonal - key));
    }
    return score;
  }

  // Turns dS, the gradient of a score, into that of `scaled`: backwards through the score function
  // and the softcap. A gradient of 0 stays 0.
  T product_gradient(std::int64_t row, std::int64_t key, T scaled, T gradient) const {
    if (gradient == T(0)) return gradient;
    if (problem_.has_score_function()) {
      const tilewise_score_tile pair = tile_of(row, key);
      const T before = capped(scaled);
      problem_.score_function.backward(problem_.score_function.user_data, &pair, &before,
                                       &gradient);
    }
    return cap_ > T(0) ? gradient * math::softcap_derivative(scaled, cap_) : gradient;
  }

  // Computes the scores of one row against a tile of keys: scores[j - keys.begin]. Masked scores
  // are -inf, and masked keys are not touched.
  //   query (D), key_tile (keys, D), scores (keys), scaled (keys) or nullptr
  void score_row(std::int64_t row, KeyRange keys, const T* query, const T* key_tile, T* scores,
                 T* scaled) const {
    mark_visible(row, keys);
    const std::int64_t head_dim = problem_.head_dim;
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      const std::int64_t column = j - keys.begin;
      if (!visible(keys, j)) {
        scores[column] = kMaskedScore<T>;
        continue;
      }
      const T product = dot(query, key_tile + column * head_dim, head_dim);
      scores[column] = score(row, j, product, scaled == nullptr ? nullptr : scaled + column);
    }
  }

  // Returns the factor that dropout applies to the probability of (row, key): 0 or 1 / (1 - p); 1
  // without dropout.
  T dropout_factor(std::int64_t row, std::int64_t key) const {
    if (problem_.dropout_p == 0) return T(1);
    const bool keeps =
        math::dropout_keeps(dropout_, origin_.head_index, origin_.row + row, origin_.key + key);
    return keeps ? static_cast<T>(dropout_.keep_scale) : T(0);
  }

 private:
  T capped(T score) const { return cap_ > T(0) ? math::softcapped(score, cap_) : score; }

  // The tile of one pair, for the score function.
  tilewise_score_tile tile_of(std::int64_t row, std::int64_t key) const {
    return problem::score_tile(problem_, sequence_, head_, {row, row + 1}, {key, key + 1},
                               sizeof(T) == 8 ? TILEWISE_FP64 : TILEWISE_FP32);
  }

  const problem::Problem& problem_;
  const problem::Sequence& sequence_;
  std::int64_t head_;
  MaskBuffers mask_;
  Counter* counter_;
  T scale_;
  T cap_;
  T slope_ = T(0);
  T sink_ = kMaskedScore<T>;
  T phi_ = T(0);
  math::DropoutRule dropout_;
  problem::DropoutOrigin origin_;
};

}  // namespace tilewise::reference
