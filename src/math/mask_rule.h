// The mask rule. Every structured mask (causal, window, slices) is a list of bands. For one row, a
// band is one interval of keys whose edges move by 0 or 1 per row; for one q tile, a k tile is
// empty, full or partial. A key is visible if it lies in any band of the list. The boolean mask and
// masked scores come on top and are no part of a band.
#pragma once

#include <concepts>
#include <type_traits>

#include "math/config.h"
#include "math/integer.h"

namespace tilewise::math {

template <std::signed_integral Int>
struct KeyRangeOf {  // [begin, end); empty if end <= begin
  Int begin;
  Int end;
};
using KeyRange = KeyRangeOf<std::int64_t>;

// The rows [row_begin, row_end) see the keys
//   max(key_begin, lower_slope * row + lower_offset) <= j < min(key_end, upper_slope * row +
//   upper_offset).
// Int is std::int64_t, or std::int32_t in kernels whose sequences are short enough.
template <std::signed_integral Int>
struct BandOf {
  Int row_begin;
  Int row_end;
  Int key_begin;
  Int key_end;
  Int lower_slope;  // 0 or 1
  Int lower_offset;
  Int upper_slope;  // 0 or 1
  Int upper_offset;

  // The keys [begin(row), end(row)) of a row of the band.
  TILEWISE_INLINE Int begin(Int row) const {
    return math::max(lower_slope * row + lower_offset, key_begin);
  }
  TILEWISE_INLINE Int end(Int row) const {
    return math::min(upper_slope * row + upper_offset, key_end);
  }
};
using Band = BandOf<std::int64_t>;

// Returns the keys that `row` sees through the band.
template <class Int>
TILEWISE_INLINE KeyRangeOf<Int> visible_keys(const BandOf<Int>& band,
                                             std::type_identity_t<Int> row) {
  if (row < band.row_begin || row >= band.row_end) return {0, 0};
  return {band.begin(row), band.end(row)};
}

TILEWISE_INLINE Band full_band(std::int64_t q_len, std::int64_t k_len) {
  return {0, q_len, 0, k_len, 0, 0, 0, k_len};
}

// Returns the band of causal and window together. `diagonal` is d; left and right are -1 for
// unbounded; causal bounds the right side by 0.
TILEWISE_INLINE Band window_band(std::int64_t q_len, std::int64_t k_len, std::int64_t diagonal,
                                 std::int64_t left, std::int64_t right) {
  Band band = full_band(q_len, k_len);
  // A side is cut to where it sees everything, so that sums cannot overflow. Only a part of a whole
  // sequence has a diagonal beyond the first k_len or q_len places.
  if (left >= 0) {
    band.lower_slope = 1;
    band.lower_offset = diagonal - math::min(left, q_len + math::max(k_len, diagonal));
  }
  if (right >= 0) {
    band.upper_slope = 1;
    band.upper_offset = diagonal + math::min(right, k_len + math::max(q_len, -diagonal)) + 1;
  }
  return band;
}

enum SliceKind : std::int64_t {
  kSliceFull = 0,
  kSliceCausal = 1,
  kSliceInverseCausal = 2,
  kSliceBand = 3
};

// Returns the band of the slice (q0, q1, k0, k1, kind). Its coordinates are first clamped to the
// tensor (max_q, max_k), and d is the clamped slice's key length minus its query length; then the
// keys from k_len on (after the sequence's end) are removed. An unknown kind or a reversed range
// gives an empty band.
TILEWISE_INLINE Band slice_band(const std::int64_t* slice, std::int64_t max_q, std::int64_t max_k,
                                std::int64_t k_len) {
  const std::int64_t q0 = clamp(slice[0], 0, max_q);
  const std::int64_t q1 = clamp(slice[1], q0, max_q);
  const std::int64_t k0 = clamp(slice[2], 0, max_k);
  const std::int64_t k1 = clamp(slice[3], k0, max_k);
  const std::int64_t kind = slice[4];
  Band band = {q0, q1, k0, math::min(k1, k_len), 0, k0, 0, k1};
  if (kind < kSliceFull || kind > kSliceBand) band.row_end = band.row_begin;
  if (kind & 1) {  // j - k0 <= (i - q0) + d
    band.upper_slope = 1;
    band.upper_offset = k0 - q0 + (k1 - k0) - (q1 - q0) + 1;
  }
  if (kind & 2) {  // j - k0 >= i - q0
    band.lower_slope = 1;
    band.lower_offset = k0 - q0;
  }
  // Where the lower edge is not below the upper one, no row sees a key.
  if (kind == kSliceBand && band.lower_offset >= band.upper_offset) band.row_end = band.row_begin;
  return band;
}

enum class TileClass { kEmpty, kFull, kPartial };

// Says whether the band leaves the tile [row_begin, row_end) x [key_begin, key_end) empty, full or
// partial. Both edges are monotone in the row, so the first and the last row decide.
template <class Int>
TILEWISE_INLINE TileClass classify(const BandOf<Int>& band, std::type_identity_t<Int> row_begin,
                                   std::type_identity_t<Int> row_end,
                                   std::type_identity_t<Int> key_begin,
                                   std::type_identity_t<Int> key_end) {
  const Int first = math::max(row_begin, band.row_begin);
  const Int last = math::min(row_end, band.row_end) - 1;
  if (first > last || key_begin >= key_end) return TileClass::kEmpty;
  if (band.end(last) <= key_begin || band.begin(first) >= key_end) return TileClass::kEmpty;
  const bool covers_rows = band.row_begin <= row_begin && band.row_end >= row_end;
  if (covers_rows && band.begin(last) <= key_begin && band.end(first) >= key_end)
    return TileClass::kFull;
  return TileClass::kPartial;
}

// Returns the smallest range that holds the keys that rows of [row_begin, row_end) see. It is empty
// if they see none: a walk over tiles may end there.
template <class Int>
TILEWISE_INLINE KeyRangeOf<Int> tile_keys(const BandOf<Int>& band,
                                          std::type_identity_t<Int> row_begin,
                                          std::type_identity_t<Int> row_end) {
  const Int first = math::max(row_begin, band.row_begin);
  const Int last = math::min(row_end - 1, band.row_end - 1);
  if (first > last) return {0, 0};
  return {band.begin(first), band.end(last)};
}

// Returns the keys that every row of [row_begin, row_end) sees.
template <class Int>
TILEWISE_INLINE KeyRangeOf<Int> common_keys(const BandOf<Int>& band,
                                            std::type_identity_t<Int> row_begin,
                                            std::type_identity_t<Int> row_end) {
  if (band.row_begin > row_begin || band.row_end < row_end) return {0, 0};
  return {visible_keys(band, row_end - 1).begin, visible_keys(band, row_begin).end};
}

// Returns the smallest range that holds the rows that see keys of [key_begin, key_end), as
// tile_keys() does for keys.
template <class Int>
TILEWISE_INLINE KeyRangeOf<Int> tile_rows(const BandOf<Int>& band,
                                          std::type_identity_t<Int> key_begin,
                                          std::type_identity_t<Int> key_end) {
  Int first = band.row_begin;
  Int last = band.row_end;
  const Int own_begin = math::max(key_begin, band.key_begin);
  const Int own_end = math::min(key_end, band.key_end);
  if (own_begin >= own_end) return {0, 0};
  if (band.upper_slope) first = math::max(first, own_begin - band.upper_offset + 1);
  if (band.lower_slope) last = math::min(last, own_end - band.lower_offset);
  if (!band.upper_slope && band.upper_offset <= own_begin) return {0, 0};
  if (!band.lower_slope && band.lower_offset >= own_end) return {0, 0};
  return {first, last};
}

}  // namespace tilewise::math
