// What happens to a tile of scores between the products: the score rule, the mask, dropout. A tile
// is t_count rows of kWidth lanes. Lanes are queries and rows are keys in the forward pass and for
// dQ; the other way round for dK and dV.
#pragma once

#include "cpu/operand.h"
#include "math/integer.h"
#include "math/mask_rule.h"
#include "math/philox.h"
#include "math/score_rule.h"
#include "problem/sequence.h"

namespace tilewise::cpu::TILEWISE_TARGET {

using math::Band;
using math::TileClass;
using problem::Problem;
using problem::Sequence;

enum class Lanes { kQueries, kKeys };

// Where a tile lies in its (sequence, head): local coordinates of its first row and lane.
struct Frame {
  std::int64_t lane0;
  std::int64_t lane_count;
  std::int64_t t0;
  std::int64_t t_count;
};

// What a tile needs to know of its (sequence, query head).
struct HeadContext {
  const Problem* problem;
  Sequence sequence;
  std::int64_t head;
  const Band* bands;
  std::int64_t band_count;

  TILEWISE_INLINE std::int64_t kv_head() const { return head / problem->group; }
};

TILEWISE_INLINE math::KeyRange frame_rows(Lanes lanes, const Frame& frame) {
  if (lanes == Lanes::kQueries) return {frame.lane0, frame.lane0 + frame.lane_count};
  return {frame.t0, frame.t0 + frame.t_count};
}
TILEWISE_INLINE math::KeyRange frame_keys(Lanes lanes, const Frame& frame) {
  if (lanes == Lanes::kQueries) return {frame.t0, frame.t0 + frame.t_count};
  return {frame.lane0, frame.lane0 + frame.lane_count};
}

// Empty if every band says so, full if one does.
TILEWISE_INLINE TileClass classify(const HeadContext& context, Lanes lanes, const Frame& frame) {
  const math::KeyRange rows = frame_rows(lanes, frame);
  const math::KeyRange keys = frame_keys(lanes, frame);
  TileClass result = TileClass::kEmpty;
  for (std::int64_t s = 0; s < context.band_count; ++s) {
    const TileClass of_band =
        math::classify(context.bands[s], rows.begin, rows.end, keys.begin, keys.end);
    if (of_band == TileClass::kFull) return TileClass::kFull;
    if (of_band == TileClass::kPartial) result = TileClass::kPartial;
  }
  return result;
}

// ---- bias and boolean mask: one row of the tile at a time, as numbers ----

template <class T, int kWidth>
TILEWISE_INLINE void load_score_row(const View& view, std::int64_t at, std::int64_t lane_stride,
                                    std::int64_t count, T* row) {
  if (view.dtype == TILEWISE_BOOL) {
    const std::uint8_t* const from = static_cast<const std::uint8_t*>(view.data) + at;
    for (std::int64_t lane = 0; lane < count; ++lane)
      row[lane] = from[lane * lane_stride] != 0 ? T(1) : T(0);
    return;
  }
  with_storage(view.dtype, [&](auto storage) {
    using S = decltype(storage);
    const S* const from = static_cast<const S*>(view.data) + at;
    for (std::int64_t lane = 0; lane < count; ++lane)
      row[lane] = math::load<T>(from[lane * lane_stride]);
  });
}

template <class T, Lanes kLanesAre, int kWidth>
void add_bias(const HeadContext& context, const Frame& frame, T* scores) {
  const View& bias = context.problem->bias;
  const bool queries = kLanesAre == Lanes::kQueries;
  const std::int64_t lane_stride = queries ? bias.row : bias.column;
  T row[kWidth] = {};
  for (std::int64_t t = 0; t < frame.t_count; ++t) {
    const std::int64_t i = queries ? frame.lane0 : frame.t0 + t;
    const std::int64_t j = queries ? frame.t0 + t : frame.lane0;
    load_score_row<T, kWidth>(bias, bias.offset(context.sequence.batch, context.head, i, j),
                              lane_stride, frame.lane_count, row);
    for (int lane = 0; lane < kWidth; ++lane) scores[t * kWidth + lane] += row[lane];
  }
}

template <class T, Lanes kLanesAre, int kWidth>
void apply_boolean_mask(const HeadContext& context, const Frame& frame, T* scores) {
  const View& mask = context.problem->mask;
  const bool queries = kLanesAre == Lanes::kQueries;
  const std::int64_t lane_stride = queries ? mask.row : mask.column;
  T row[kWidth] = {};
  for (std::int64_t t = 0; t < frame.t_count; ++t) {
    const std::int64_t i = queries ? frame.lane0 : frame.t0 + t;
    const std::int64_t j = queries ? frame.t0 + t : frame.lane0;
    load_score_row<T, kWidth>(mask, mask.offset(context.sequence.batch, context.head, i, j),
                              lane_stride, frame.lane_count, row);
    for (int lane = 0; lane < kWidth; ++lane) {
      scores[t * kWidth + lane] = math::masked(row[lane] != T(0), scores[t * kWidth + lane]);
    }
  }
}

// ---- softcap and ALiBi: lane-wise ----

// scores = softcapped(scores); derivative, if given, receives the factor of the backward pass.
template <class T, int kWidth>
void apply_softcap(T cap, std::int64_t t_count, T* scores, T* derivative) {
  for (std::int64_t at = 0; at < t_count * kWidth; at += Vec<T>::kLanes) {
    const Vec<T> score = Vec<T>::load(scores + at);
    if (derivative != nullptr) math::softcap_derivative(score, Vec<T>(cap)).store(derivative + at);
    math::softcapped(score, Vec<T>(cap)).store(scores + at);
  }
}

template <class T, Lanes kLanesAre, int kWidth>
void add_alibi(const HeadContext& context, const Frame& frame, T* scores) {
  const View& slopes = context.problem->alibi_slopes;
  const Vec<T> slope(static_cast<T>(static_cast<const float*>(
      slopes.data)[slopes.offset(context.sequence.batch, context.head, 0)]));
  for (std::int64_t t = 0; t < frame.t_count; ++t) {
    // i + d - j = base + sign * lane
    const bool queries = kLanesAre == Lanes::kQueries;
    const std::int64_t base = queries ? frame.lane0 + context.sequence.diagonal - frame.t0 - t
                                      : frame.t0 + t + context.sequence.diagonal - frame.lane0;
    for (int lane = 0; lane < kWidth; lane += Vec<T>::kLanes) {
      const Vec<T> step = Vec<T>::iota() + Vec<T>(static_cast<T>(lane));
      const Vec<T> distance =
          queries ? Vec<T>(static_cast<T>(base)) + step : Vec<T>(static_cast<T>(base)) - step;
      T* const at = scores + t * kWidth + lane;
      (Vec<T>::load(at) + math::alibi(slope, distance)).store(at);
    }
  }
}

// ---- structured mask ----

// Scores outside [low, high) of their row become -inf; the edges are tile coordinates, per lane
// (queries) or per row (keys).
template <class T, Lanes kLanesAre, int kWidth>
void apply_edges(const Frame& frame, const T* low, const T* high, T* scores) {
  // Rows between these are visible from every lane (queries).
  T every_low = T(0);
  T every_high = static_cast<T>(frame.t_count);
  for (std::int64_t lane = 0; kLanesAre == Lanes::kQueries && lane < frame.lane_count; ++lane) {
    every_low = every_low < low[lane] ? low[lane] : every_low;
    every_high = every_high > high[lane] ? high[lane] : every_high;
  }
  for (std::int64_t t = 0; t < frame.t_count; ++t) {
    const bool whole = kLanesAre == Lanes::kQueries
                           ? static_cast<T>(t) >= every_low && static_cast<T>(t) < every_high
                           : low[t] <= T(0) && high[t] >= static_cast<T>(frame.lane_count);
    if (whole) continue;
    for (int lane = 0; lane < kWidth; lane += Vec<T>::kLanes) {
      T* const at = scores + t * kWidth + lane;
      const bool queries = kLanesAre == Lanes::kQueries;
      const Vec<T> key =
          queries ? Vec<T>(static_cast<T>(t)) : Vec<T>::iota() + Vec<T>(static_cast<T>(lane));
      const Vec<T> first = queries ? Vec<T>::load(low + lane) : Vec<T>(low[t]);
      const Vec<T> end = queries ? Vec<T>::load(high + lane) : Vec<T>(high[t]);
      math::masked((first <= key) & (key < end), Vec<T>::load(at)).store(at);
    }
  }
}

// Edges of one band in tile coordinates, clamped to the tile so that T holds them exactly.  low,
// high: (rows)
template <class T>
TILEWISE_INLINE void fill_edges(const Band& band, math::KeyRange rows, math::KeyRange keys, T* low,
                                T* high) {
  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
    const math::KeyRange range = math::visible_keys(band, i);
    const std::int64_t length = keys.end - keys.begin;
    low[i - rows.begin] = static_cast<T>(math::clamp(range.begin - keys.begin, 0, length));
    high[i - rows.begin] = static_cast<T>(math::clamp(range.end - keys.begin, 0, length));
  }
}

// Buffers for the steps below. `edges` holds two numbers for each row or lane of a tile; `visible`
// a whole tile.
template <class T>
struct MaskScratch {
  T* low;
  T* high;
  std::uint8_t* visible;
};

// A tile that several bands touch: the OR of their row intervals, then one selection.
template <class T, Lanes kLanesAre, int kWidth>
void apply_union(const HeadContext& context, const Frame& frame, std::uint8_t* visible, T* scores) {
  const math::KeyRange rows = frame_rows(kLanesAre, frame);
  const math::KeyRange keys = frame_keys(kLanesAre, frame);
  __builtin_memset(visible, 0, static_cast<std::size_t>(frame.t_count * kWidth));
  for (std::int64_t s = 0; s < context.band_count; ++s) {
    for (std::int64_t i = rows.begin; i < rows.end; ++i) {
      const math::KeyRange range = math::visible_keys(context.bands[s], i);
      for (std::int64_t j = math::max(range.begin, keys.begin); j < math::min(range.end, keys.end);
           ++j) {
        const bool queries = kLanesAre == Lanes::kQueries;
        visible[queries ? (j - keys.begin) * kWidth + i - rows.begin
                        : (i - rows.begin) * kWidth + j - keys.begin] = 1;
      }
    }
  }
  for (std::int64_t at = 0; at < frame.t_count * kWidth; ++at)
    scores[at] = math::masked(visible[at] != 0, scores[at]);
}

// The mask of a partial tile.
template <class T, Lanes kLanesAre, int kWidth>
void apply_bands(const HeadContext& context, const Frame& frame, const MaskScratch<T>& scratch,
                 T* scores) {
  const math::KeyRange rows = frame_rows(kLanesAre, frame);
  const math::KeyRange keys = frame_keys(kLanesAre, frame);
  const Band* touching = nullptr;
  for (std::int64_t s = 0; s < context.band_count; ++s) {
    if (math::classify(context.bands[s], rows.begin, rows.end, keys.begin, keys.end) ==
        TileClass::kEmpty)
      continue;
    if (touching != nullptr)
      return apply_union<T, kLanesAre, kWidth>(context, frame, scratch.visible, scores);
    touching = &context.bands[s];
  }
  fill_edges(*touching, rows, keys, scratch.low, scratch.high);
  apply_edges<T, kLanesAre, kWidth>(frame, scratch.low, scratch.high, scores);
}

// ---- the whole rule ----

// How scores are kept. Plain: as products, unscaled, so that no rounding of the scale enters the
// operands; the exponential's unit holds the scale, which must be positive there, and the packed
// operand its sign. General, or a scale that the unit cannot hold (0, or near the ends of the
// range): in natural units, after the score rule.
template <class T>
struct ScoreUnits {
  bool plain;
  T packed;   // what the packed operand is multiplied by: 1 or -1
  T natural;  // natural units in one unit of a score

  TILEWISE_INLINE explicit ScoreUnits(const Problem& problem) {
    const double size = __builtin_fabs(problem.scale);
    plain = !problem.general_scores() && size > 0x1p-60 && size < 0x1p60;
    packed = plain && problem.scale < 0 ? T(-1) : T(1);
    natural = plain ? static_cast<T>(size) : T(1);
  }

  // L: T, or lanes of it.
  template <class L = Vec<T>>
  TILEWISE_INLINE math::ExponentUnit<L> exponent() const {
    return math::ExponentUnit<L>(L(static_cast<T>(static_cast<double>(natural) * math::kLog2E)));
  }
};

// From the product to masked scores in the units of ScoreUnits. `derivative` as in apply_softcap.
template <class T, Lanes kLanesAre, int kWidth>
void finish_scores(const HeadContext& context, const Frame& frame, TileClass tile_class,
                   const MaskScratch<T>& scratch, T* scores, T* derivative) {
  const Problem& problem = *context.problem;
  if (!ScoreUnits<T>(problem).plain) {
    const Vec<T> scale(static_cast<T>(problem.scale));
    for (std::int64_t at = 0; at < frame.t_count * kWidth; at += Vec<T>::kLanes)
      (Vec<T>::load(scores + at) * scale).store(scores + at);
    if (problem.softcap > 0)
      apply_softcap<T, kWidth>(static_cast<T>(problem.softcap), frame.t_count, scores, derivative);
    if (problem.bias.present()) add_bias<T, kLanesAre, kWidth>(context, frame, scores);
    if (problem.alibi_slopes.present()) add_alibi<T, kLanesAre, kWidth>(context, frame, scores);
    if (problem.mask.present()) apply_boolean_mask<T, kLanesAre, kWidth>(context, frame, scores);
  }
  if (tile_class == TileClass::kPartial)
    apply_bands<T, kLanesAre, kWidth>(context, frame, scratch, scores);
}

// What dropout multiplies the probabilities by that it keeps.
template <class T>
TILEWISE_INLINE T kept_factor(const Problem& problem) {
  return static_cast<T>(
      math::dropout_rule(problem.dropout_p, problem.dropout_seed, problem.dropout_offset)
          .keep_scale);
}

// keep[t][lane] = `kept` or 0, for the keys and queries of the tile (other lanes are left alone).
template <class T, Lanes kLanesAre, int kWidth>
void fill_dropout(const HeadContext& context, const Frame& frame, T kept, T* keep) {
  const Problem& problem = *context.problem;
  const math::DropoutRule rule =
      math::dropout_rule(problem.dropout_p, problem.dropout_seed, problem.dropout_offset);
  const std::int64_t head_index = context.sequence.batch * problem.heads + context.head;
  const math::KeyRange rows = frame_rows(kLanesAre, frame);
  const math::KeyRange keys = frame_keys(kLanesAre, frame);
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

}  // namespace tilewise::cpu::TILEWISE_TARGET
