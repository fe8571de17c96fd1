// The mask on a tile: causal, sliding window and slices (all of them bands, math/mask_rule.h), and
// the boolean mask. A masked score becomes -inf.
#pragma once

#include "cpu/common/tile.h"
#include "cpu/simd/conversion.h"
#include "math/integer.h"
#include "math/mask_rule.h"
#include "math/score_rule.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// ---- the bands of a head and of a tile ----

// Returns the context of a whole head. `bands` has room for max_bands(problem): narrowed() fills it
// in.
TILEWISE_INLINE HeadContext head_context(const Problem& problem, const Sequence& sequence,
                                         std::int64_t head, const BandIndex& index, Band* bands) {
  HeadContext context = {&problem, sequence, head, bands, 0};
  if (problem.slices.present()) {
    context.index = &index;
  } else {
    context.band_count = problem::sequence_bands(problem, sequence, head, bands);
  }
  return context;
}

// Calls f(band, the keys that it shows to the rows) for the bands of the head's index that show
// some of the keys to some of the rows. f may move the ends of the ranges closer together.
template <class Function>
TILEWISE_INLINE void for_each_touching(const HeadContext& context, const math::KeyRange& rows,
                                       const math::KeyRange& keys, Function f) {
  const auto visit = [&](const problem::IndexedBand& entry) {
    if (entry.head != -1 && entry.head != context.head) return;
    Band band = entry.band;
    band.key_end = math::min(band.key_end, context.sequence.k_len);
    const math::KeyRange seen = math::tile_keys(band, rows.begin, rows.end);
    if (seen.begin < seen.end && seen.begin < keys.end && seen.end > keys.begin) f(band, seen);
  };
  context.index->for_each_candidate(context.head, rows, keys, visit);
}

// Returns the context with the list of the bands that touch the rows and the keys, in `bands`.
// Every band of the list is one of the head's, so the context holds for these rows and keys alone.
inline HeadContext narrowed(const HeadContext& context, math::KeyRange rows, math::KeyRange keys,
                            Band* bands) {
  if (context.index == nullptr) return context;
  HeadContext result = context;
  result.index = nullptr;
  result.bands = bands;
  for_each_touching(context, rows, keys, [&](const Band& band, const math::KeyRange&) {
    bands[result.band_count++] = band;
  });
  return result;
}

// ---- the class of a tile ----

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

// Whether the boolean mask hides all of the keys from all of the rows. It reads as much as it takes
// to find a visible pair; a tile that it hides need not be computed. Not inlined: in bf16 with AMX
// a full mask took 1.2 times as long (bench/results/cpu/xeon-block-sparse.txt).
__attribute__((noinline)) inline bool boolean_mask_hides(const HeadContext& context,
                                                         math::KeyRange rows, math::KeyRange keys) {
  const View& mask = context.problem->mask;
  if (!mask.present()) return false;
  const std::int64_t count = keys.end - keys.begin;
  const std::int64_t last = mask.row == 0 ? math::min(rows.end, rows.begin + 1) : rows.end;
  for (std::int64_t i = rows.begin; i < last; ++i) {
    const std::uint8_t* const row =
        static_cast<const std::uint8_t*>(mask.data) +
        mask.offset(context.sequence.batch, context.head, i, keys.begin);
    std::int64_t j = 0;
    for (; mask.column == 1 && j + 8 <= count; j += 8) {
      std::uint64_t eight;
      __builtin_memcpy(&eight, row + j, sizeof(eight));
      if (eight != 0) return false;
    }
    for (; j < count; ++j) {
      if (row[j * mask.column] != 0) return false;
    }
  }
  return true;
}

// classify(), with the boolean mask: a tile that it hides is empty.
TILEWISE_INLINE TileClass classify_masked(const HeadContext& context, Lanes lanes,
                                          const TileBounds& bounds) {
  const TileClass result = classify(context, lanes, bounds);
  if (result == TileClass::kEmpty) return result;
  const bool hidden = boolean_mask_hides(context, rows_of(lanes, bounds), keys_of(lanes, bounds));
  return hidden ? TileClass::kEmpty : result;
}

// ---- masked scores ----

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
    const Band& band = context.bands[s];
    const std::int64_t end = math::min(rows.end, band.row_end);
    for (std::int64_t i = math::max(rows.begin, band.row_begin); i < end; ++i) {
      const math::KeyRange range = math::visible_keys(band, i);
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

// ---- what rows see, and what sees keys ----

// Adds a range, unless it is empty, to the smallest one that contains all of them.
TILEWISE_INLINE void extend(math::KeyRange& all, const math::KeyRange& more) {
  if (more.begin >= more.end) return;
  all.begin = math::min(all.begin, more.begin);
  all.end = math::max(all.end, more.end);
}

// The keys that any of the rows [first, first + rows) sees through any band.
inline math::KeyRange keys_of_rows(const HeadContext& context, std::int64_t first,
                                   std::int64_t rows) {
  const std::int64_t k_len = context.sequence.k_len;
  math::KeyRange range = {k_len, 0};
  if (context.index != nullptr) {
    for_each_touching(context, {first, first + rows}, {0, k_len},
                      [&](const Band&, const math::KeyRange& seen) { extend(range, seen); });
  }
  for (std::int64_t s = 0; s < context.band_count; ++s)
    extend(range, math::tile_keys(context.bands[s], first, first + rows));
  return {math::max(range.begin, 0), math::min(range.end, k_len)};
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
inline math::KeyRange rows_of_keys(const HeadContext& context, std::int64_t first,
                                   std::int64_t count) {
  const std::int64_t q_len = context.sequence.q_len;
  math::KeyRange range = {q_len, 0};
  if (context.index != nullptr) {
    for_each_touching(context, {0, q_len}, {first, first + count},
                      [&](const Band& band, const math::KeyRange&) {
                        extend(range, math::tile_rows(band, first, first + count));
                      });
  }
  for (std::int64_t s = 0; s < context.band_count; ++s)
    extend(range, math::tile_rows(context.bands[s], first, first + count));
  return {math::max(range.begin, 0), math::min(range.end, q_len)};
}

// The part of a range that lies in the range's first tile.
TILEWISE_INLINE math::KeyRange first_tile(math::KeyRange range, std::int64_t tile) {
  return {range.begin, math::min(range.begin / tile * tile + tile, range.end)};
}

// Returns what the rows see of the first tile of `keys` in which they see a key: the keys from the
// first to the last one. The range is empty if they see none. Tiles are multiples of `tile` keys.
// One band leaves no tile empty between the first and the last one, so that without slices it is
// the first tile, and all of it.
inline math::KeyRange next_visible_keys(const HeadContext& context, const math::KeyRange& rows,
                                        math::KeyRange keys, std::int64_t tile) {
  if (context.index == nullptr) return first_tile(keys, tile);
  math::KeyRange before = keys;  // the keys before the first one that is known to be seen
  for_each_touching(context, rows, before, [&](const Band&, const math::KeyRange& seen) {
    before.end = math::max(seen.begin, keys.begin);
  });
  const math::KeyRange first = first_tile({before.end, keys.end}, tile);
  math::KeyRange range = {first.end, first.begin};
  for_each_touching(context, rows, first,
                    [&](const Band&, const math::KeyRange& seen) { extend(range, seen); });
  return {math::max(range.begin, first.begin), math::min(range.end, first.end)};
}

// Returns the rows of the first tile of `rows` that see some of the keys, from the first to the
// last one, as next_visible_keys() does for keys.
inline math::KeyRange next_visible_rows(const HeadContext& context, const math::KeyRange& keys,
                                        math::KeyRange rows, std::int64_t tile) {
  if (context.index == nullptr) return first_tile(rows, tile);
  math::KeyRange before = rows;
  for_each_touching(context, before, keys, [&](const Band& band, const math::KeyRange&) {
    const math::KeyRange seeing = math::tile_rows(band, keys.begin, keys.end);
    if (seeing.begin < math::min(seeing.end, before.end))
      before.end = math::max(seeing.begin, rows.begin);
  });
  const math::KeyRange first = first_tile({before.end, rows.end}, tile);
  math::KeyRange range = {first.end, first.begin};
  for_each_touching(context, first, keys, [&](const Band& band, const math::KeyRange&) {
    extend(range, math::tile_rows(band, keys.begin, keys.end));
  });
  return {math::max(range.begin, first.begin), math::min(range.end, first.end)};
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
