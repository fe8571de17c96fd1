// Dropout.
#pragma once

#include "cpu/common/tile.h"
#include "math/integer.h"
#include "math/philox.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// What dropout multiplies the probabilities by that it keeps.
template <class T>
TILEWISE_INLINE T dropout_scale(const Problem& problem) {
  return static_cast<T>(
      math::dropout_rule(problem.dropout_p, problem.dropout_seed, problem.dropout_offset)
          .keep_scale);
}

// keep[t][lane] = `kept` or 0, for the keys and queries of the tile (other lanes are left alone).
template <class T, Lanes kLanesAre, int kWidth>
void fill_dropout(const HeadContext& context, const TileBounds& bounds, T kept, T* keep) {
  const Problem& problem = *context.problem;
  const math::DropoutRule rule =
      math::dropout_rule(problem.dropout_p, problem.dropout_seed, problem.dropout_offset);
  const std::int64_t head_index = context.sequence.batch * problem.heads + context.head;
  const math::KeyRange rows = rows_of(kLanesAre, bounds);
  const math::KeyRange keys = keys_of(kLanesAre, bounds);
  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
    for (std::int64_t group = keys.begin / 4; group * 4 < keys.end; ++group) {
      const math::Philox4 words = math::dropout_words(rule, head_index, i, group);
      for (std::int64_t j = math::max(group * 4, keys.begin);
           j < math::min(group * 4 + 4, keys.end); ++j) {
        const std::int64_t at = kLanesAre == Lanes::kQueries
                                    ? (j - keys.begin) * kWidth + i - rows.begin
                                    : (i - rows.begin) * kWidth + j - keys.begin;
        keep[at] = words.word[j % 4] >= rule.threshold ? kept : T(0);
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

// Weights that are bf16 in a product are dropped without the factor of those that stay: it would be
// rounded on each the same way, a weight of 1 to 0.16 % less. The sums get it.
template <class E>
inline constexpr bool kRoundsProbs = !std::is_same_v<E, SumOf<E>>;

}  // namespace tilewise::cpu::TILEWISE_TARGET
