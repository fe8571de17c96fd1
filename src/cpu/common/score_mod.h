// Score modifications of a tile, between the product Q K^T and the softmax: scale, softcap, the
// caller's score function, bias, ALiBi and the mask. The same code serves both orientations: lanes
// are queries and rows are keys in the forward pass and for dBias, and the other way round for dK
// and dV.
#pragma once

#include "cpu/common/mask.h"
#include "cpu/common/score_function.h"
#include "math/score_rule.h"

namespace tilewise::cpu::TILEWISE_TARGET {

template <class T, Lanes kLanesAre, int kWidth>
void add_bias(const HeadContext& context, const TileBounds& bounds, T* scores) {
  const View& bias = context.problem->bias;
  const bool queries = kLanesAre == Lanes::kQueries;
  const std::int64_t lane_stride = queries ? bias.row : bias.column;
  T row[kWidth] = {};
  for (std::int64_t t = 0; t < bounds.t_count; ++t) {
    const std::int64_t i = queries ? bounds.lane0 : bounds.t0 + t;
    const std::int64_t j = queries ? bounds.t0 + t : bounds.lane0;
    load_score_row<T, kWidth>(bias, bias.offset(context.sequence.batch, context.head, i, j),
                              lane_stride, bounds.lane_count, row);
    for (int lane = 0; lane < kWidth; ++lane) scores[t * kWidth + lane] += row[lane];
  }
}

// scores = softcapped(scores). `derivative`, if given, receives the factor for the backward pass.
template <class T, int kWidth>
void apply_softcap(T cap, std::int64_t t_count, T* scores, T* derivative) {
  for (std::int64_t at = 0; at < t_count * kWidth; at += Vec<T>::kLanes) {
    const Vec<T> score = Vec<T>::load(scores + at);
    if (derivative != nullptr) math::softcap_derivative(score, Vec<T>(cap)).store(derivative + at);
    math::softcapped(score, Vec<T>(cap)).store(scores + at);
  }
}

template <class T, Lanes kLanesAre, int kWidth>
void add_alibi(const HeadContext& context, const TileBounds& bounds, T* scores) {
  const View& slopes = context.problem->alibi_slopes;
  const Vec<T> slope(static_cast<T>(static_cast<const float*>(
      slopes.data)[slopes.offset(context.sequence.batch, context.head, 0)]));
  for (std::int64_t t = 0; t < bounds.t_count; ++t) {
    // i + d - j = base + sign * lane
    const bool queries = kLanesAre == Lanes::kQueries;
    const std::int64_t base = queries ? bounds.lane0 + context.sequence.diagonal - bounds.t0 - t
                                      : bounds.t0 + t + context.sequence.diagonal - bounds.lane0;
    for (int lane = 0; lane < kWidth; lane += Vec<T>::kLanes) {
      const Vec<T> step = Vec<T>::iota() + Vec<T>(static_cast<T>(lane));
      const Vec<T> distance =
          queries ? Vec<T>(static_cast<T>(base)) + step : Vec<T>(static_cast<T>(base)) - step;
      T* const at = scores + t * kWidth + lane;
      (Vec<T>::load(at) + math::alibi(slope, distance)).store(at);
    }
  }
}

// The representation of scores. Without score modifications they stay unscaled, as the products
// are: the operands then need no rounding for the scale, which goes into the exponential as
// scale_log2. That factor must be positive, so that the packed operand carries the sign. With score
// modifications, or with a scale that scale_log2 cannot hold (0, or near the ends of the range),
// scores are in natural units, after the modifications.
template <class T>
struct ScoreScaling {
  bool unscaled;
  T sign;    // 1 or -1; the packed operand is multiplied by it
  T factor;  // natural units in one unit of a score

  TILEWISE_INLINE explicit ScoreScaling(const Problem& problem) {
    const double size = __builtin_fabs(problem.scale);
    unscaled = !problem.has_score_mod() && size > 0x1p-60 && size < 0x1p60;
    sign = unscaled && problem.scale < 0 ? T(-1) : T(1);
    factor = unscaled ? static_cast<T>(size) : T(1);
  }

  // L is T, or a vector of it.
  template <class L = Vec<T>>
  TILEWISE_INLINE math::ScaleLog2<L> scale_log2() const {
    return math::ScaleLog2<L>(L(static_cast<T>(static_cast<double>(factor) * math::kLog2E)));
  }
};

// Whether small operands of scores may be multiplied by units, so that scores below the normal
// numbers count as 0 (divide_scores). A larger scale would make numbers of ordinary size of them.
TILEWISE_INLINE bool scores_have_units(const Problem& problem) {
  return __builtin_fabs(problem.scale) < 0x1p60;
}

// The numbers of a tile's scores that the backward pass needs, (t_count, kWidth) each, or nullptr.
template <class T>
struct ScoreRecord {
  T* derivative = nullptr;  // of the softcap
  T* before = nullptr;      // the scores before the score function
};

// From products to masked scores, in the representation of ScoreScaling.
template <class T, Lanes kLanesAre, int kWidth>
void apply_score_mod(const HeadContext& context, const TileBounds& bounds, TileClass tile_class,
                     const MaskScratch<T>& scratch, T* scores, const ScoreRecord<T>& record) {
  const Problem& problem = *context.problem;
  if (!ScoreScaling<T>(problem).unscaled) {
    const Vec<T> scale(static_cast<T>(problem.scale));
    for (std::int64_t at = 0; at < bounds.t_count * kWidth; at += Vec<T>::kLanes)
      (Vec<T>::load(scores + at) * scale).store(scores + at);
    if (problem.softcap > 0)
      apply_softcap<T, kWidth>(static_cast<T>(problem.softcap), bounds.t_count, scores,
                               record.derivative);
    if (problem.has_score_function())
      apply_score_function<T, kLanesAre, kWidth>(context, bounds, scores, record.before);
    if (problem.bias.present()) add_bias<T, kLanesAre, kWidth>(context, bounds, scores);
    if (problem.alibi_slopes.present()) add_alibi<T, kLanesAre, kWidth>(context, bounds, scores);
    if (problem.mask.present()) apply_boolean_mask<T, kLanesAre, kWidth>(context, bounds, scores);
  }
  if (tile_class == TileClass::kPartial)
    apply_bands<T, kLanesAre, kWidth>(context, bounds, scratch, scores);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
