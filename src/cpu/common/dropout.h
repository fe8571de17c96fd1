// Dropout on a tile of probabilities. Philox (math/philox.h) decides by position alone which ones
// are kept.
#pragma once

#include "cpu/common/tile.h"
#include "math/integer.h"
#include "math/philox.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// The factor of the probabilities that dropout keeps.
template <class T>
TILEWISE_INLINE T dropout_scale(const Problem& problem) {
  return static_cast<T>(
      math::dropout_rule(problem.dropout_p, problem.dropout_seed, problem.dropout_offset)
          .keep_scale);
}

// Sets keep[t][lane] to keep_scale or 0 for the keys and queries of the tile. Other lanes are not
// written.
template <class T, Lanes kLanesAre, int kWidth>
void fill_dropout(const HeadContext& context, const TileBounds& bounds, T keep_scale, T* keep) {
  const Problem& problem = *context.problem;
  const math::DropoutRule rule =
      math::dropout_rule(problem.dropout_p, problem.dropout_seed, problem.dropout_offset);
  const problem::DropoutOrigin origin =
      problem::dropout_origin(problem, context.sequence.batch, context.head);
  const math::KeyRange rows = rows_of(kLanesAre, bounds);
  math::KeyRange keys = keys_of(kLanesAre, bounds);  // of the whole sequence
  keys.begin += origin.key;
  keys.end += origin.key;
  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
    for (std::int64_t group = keys.begin / 4; group * 4 < keys.end; ++group) {
      const math::Philox4 words =
          math::dropout_words(rule, origin.head_index, i + origin.row, group);
      for (std::int64_t j = math::max(group * 4, keys.begin);
           j < math::min(group * 4 + 4, keys.end); ++j) {
        const std::int64_t at = kLanesAre == Lanes::kQueries
                                    ? (j - keys.begin) * kWidth + i - rows.begin
                                    : (i - rows.begin) * kWidth + j - keys.begin;
        keep[at] = words.word[j % 4] >= rule.threshold ? keep_scale : T(0);
      }
    }
  }
}

template <class T, int kWidth>
void apply_dropout(const TileBounds& bounds, const T* keep, T* probs) {
  for (std::int64_t t = 0; t < bounds.t_count; ++t) {
    for (std::int64_t lane = 0; lane < bounds.lane_count; ++lane)
      probs[t * kWidth + lane] *= keep[t * kWidth + lane];
  }
}

// True if probabilities are rounded to bf16 before the product with V. Then dropout multiplies the
// sums by its factor instead of the probabilities: multiplied first, all of them would be rounded
// in the same direction, and a probability of 1 would lose up to 0.16 %.
template <class E>
inline constexpr bool kRoundsProbs = !std::is_same_v<E, SumOf<E>>;

}  // namespace tilewise::cpu::TILEWISE_TARGET
