// The mask on a tile: causal, sliding window and slices (all of them bands, math/mask_rule.h), and
// the boolean mask. A masked score becomes -inf.
#pragma once

#include "cpu/common/tile.h"
#include "cpu/simd/conversion.h"
#include "math/integer.h"
#include "math/mask_rule.h"
#include "math/score_rule.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// A tile is empty if it is empty in every band, and full if it is full in one band.
TILEWISE_INLINE TileClass classify(const HeadContext& context, Lanes lanes,
                                   const TileBounds& bounds) {
  const math::KeyRange rows = rows_of(lanes, bounds);
  const math::KeyRange keys = keys_of(lanes, bounds);
  TileClass result = TileClass::kEmpty;
  for (std::int64_t s = 0; s < context.band_count; ++s) {
    const TileClass of_band =
        math::classify(context.bands[s], rows.begin, rows.end, keys.begin, keys.end);
    if (of_band == TileClass::kFull) return TileClass::kFull;
    if (of_band == TileClass::kPartial) result = TileClass::kPartial;
  }
  return result;
}

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
void apply_boolean_mask(const HeadContext& context, const TileBounds& bounds, T* scores) {
  const View& mask = context.problem->mask;
  const bool queries = kLanesAre == Lanes::kQueries;
  const std::int64_t lane_stride = queries ? mask.row : mask.column;
  T row[kWidth] = {};
  for (std::int64_t t = 0; t < bounds.t_count; ++t) {
    const std::int64_t i = queries ? bounds.lane0 : bounds.t0 + t;
    const std::int64_t j = queries ? bounds.t0 + t : bounds.lane0;
    load_score_row<T, kWidth>(mask, mask.offset(context.sequence.batch, context.head, i, j),
                              lane_stride, bounds.lane_count, row);
    for (int lane = 0; lane < kWidth; ++lane) {
      scores[t * kWidth + lane] = math::masked(row[lane] != T(0), scores[t * kWidth + lane]);
    }
  }
}

// Scores outside [low, high) of their row become -inf. low and high are tile coordinates, one pair
// per lane (lanes are queries) or per row (lanes are keys).
template <class T, Lanes kLanesAre, int kWidth>
void apply_edges(const TileBounds& bounds, const T* low, const T* high, T* scores) {
  // The rows in between are visible from every lane (lanes are queries).
  T every_low = T(0);
  T every_high = static_cast<T>(bounds.t_count);
  for (std::int64_t lane = 0; kLanesAre == Lanes::kQueries && lane < bounds.lane_count; ++lane) {
    every_low = every_low < low[lane] ? low[lane] : every_low;
    every_high = every_high > high[lane] ? high[lane] : every_high;
  }
  for (std::int64_t t = 0; t < bounds.t_count; ++t) {
    const bool whole = kLanesAre == Lanes::kQueries
                           ? static_cast<T>(t) >= every_low && static_cast<T>(t) < every_high
                           : low[t] <= T(0) && high[t] >= static_cast<T>(bounds.lane_count);
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

// Fills in the edges of one band in tile coordinates, clamped to the tile so that T holds them
// exactly.
//
// low, high: (rows)
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

// Buffers of apply_bands(): low and high have one number for each row or lane of a tile, visible
// has a whole tile.
template <class T>
struct MaskScratch {
  T* low;
  T* high;
  std::uint8_t* visible;
};

// The mask of a tile that several bands touch: the union of their row intervals, then one
// selection.
template <class T, Lanes kLanesAre, int kWidth>
void apply_union(const HeadContext& context, const TileBounds& bounds, std::uint8_t* visible,
                 T* scores) {
  const math::KeyRange rows = rows_of(kLanesAre, bounds);
  const math::KeyRange keys = keys_of(kLanesAre, bounds);
  __builtin_memset(visible, 0, static_cast<std::size_t>(bounds.t_count * kWidth));
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
  for (std::int64_t at = 0; at < bounds.t_count * kWidth; ++at)
    scores[at] = math::masked(visible[at] != 0, scores[at]);
}

// Applies the mask to a partial tile.
template <class T, Lanes kLanesAre, int kWidth>
void apply_bands(const HeadContext& context, const TileBounds& bounds,
                 const MaskScratch<T>& scratch, T* scores) {
  const math::KeyRange rows = rows_of(kLanesAre, bounds);
  const math::KeyRange keys = keys_of(kLanesAre, bounds);
  const Band* touching = nullptr;
  for (std::int64_t s = 0; s < context.band_count; ++s) {
    if (math::classify(context.bands[s], rows.begin, rows.end, keys.begin, keys.end) ==
        TileClass::kEmpty)
      continue;
    if (touching != nullptr)
      return apply_union<T, kLanesAre, kWidth>(context, bounds, scratch.visible, scores);
    touching = &context.bands[s];
  }
  fill_edges(*touching, rows, keys, scratch.low, scratch.high);
  apply_edges<T, kLanesAre, kWidth>(bounds, scratch.low, scratch.high, scores);
}

// The keys that any of the rows [first, first + rows) sees through any band.
TILEWISE_INLINE math::KeyRange keys_of_rows(const HeadContext& context, std::int64_t first,
                                            std::int64_t rows) {
  math::KeyRange range = {context.sequence.k_len, 0};
  for (std::int64_t s = 0; s < context.band_count; ++s) {
    const math::KeyRange of_band = math::tile_keys(context.bands[s], first, first + rows);
    if (of_band.begin >= of_band.end) continue;
    range.begin = math::min(range.begin, of_band.begin);
    range.end = math::max(range.end, of_band.end);
  }
  return {math::max(range.begin, 0), math::min(range.end, context.sequence.k_len)};
}

// The keys that all of the rows see through one band: the band that shows the most keys.
TILEWISE_INLINE math::KeyRange common_keys_of_rows(const HeadContext& context, std::int64_t first,
                                                   std::int64_t rows) {
  math::KeyRange range = {0, 0};
  for (std::int64_t s = 0; s < context.band_count; ++s) {
    const math::KeyRange of_band = math::common_keys(context.bands[s], first, first + rows);
    if (of_band.end - of_band.begin > range.end - range.begin) range = of_band;
  }
  return range;
}

// The rows that see any of the keys [first, first + count) through any band.
TILEWISE_INLINE math::KeyRange rows_of_keys(const HeadContext& context, std::int64_t first,
                                            std::int64_t count) {
  math::KeyRange range = {context.sequence.q_len, 0};
  for (std::int64_t s = 0; s < context.band_count; ++s) {
    const math::KeyRange of_band = math::tile_rows(context.bands[s], first, first + count);
    if (of_band.begin >= of_band.end) continue;
    range.begin = math::min(range.begin, of_band.begin);
    range.end = math::max(range.end, of_band.end);
  }
  return {math::max(range.begin, 0), math::min(range.end, context.sequence.q_len)};
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
