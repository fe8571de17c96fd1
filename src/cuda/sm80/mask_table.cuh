// The structured mask of a tile of queries: causal, windows and slices as bands, and the classes of
// the tiles of kTile keys under them. The bands lie in shared memory.
#pragma once

#include "cuda/host/sequences.cuh"
#include "cuda/sm80/parameters.h"
#include "cuda/sm80/shared.cuh"
#include "cuda/tile/band_reads.cuh"
#include "cuda/tile/mask_bits.h"
#include "cuda/tile/window_band.h"
#include "math/integer.h"

namespace tilewise::cuda::sm80 {

// The bands that touch a tile of queries or of keys.
//
// kSearches: they are found by their boxes; otherwise the whole list is read, where a kernel has no
// registers for a search
template <bool kSearches>
class BandList {
 public:
  __device__ BandList(const Parameters& parameters, const HeadTile& tile, MaskTable& table)
      : parameters_(parameters), tile_(tile), table_(table) {}

  // The mask bits of a lane's rows, which are `step` apart: a bit for each column of the lane.
  // before(x) is the number of its columns before key x. Each band is read once for all rows.
  template <class Before, int kRows>
  __device__ __forceinline__ void mask_bits(std::int32_t row, int step, const Before& before,
                                            std::uint32_t (&visible)[kRows]) const {
#pragma unroll
    for (std::uint32_t& bits : visible) bits = 0;
    const tile::Range rows = {row, row + (kRows - 1) * step + 1};
#pragma unroll 1
    for (std::int32_t i = 0; (i = next_band(i, rows, before.range())) < table_.count; ++i) {
      const tile::Band own = band(i);
#pragma unroll
      for (int r = 0; r < kRows; ++r) visible[r] |= tile::visible_bits(own, row + r * step, before);
    }
  }

 protected:
  // The band of causal, windows and whole sequences.
  __device__ __forceinline__ tile::Band window_band() const {
    const Sequence& sequence = tile_.sequence;
    const tile::WindowBand edges = tile::window_band(
        static_cast<std::int32_t>(sequence.k_len), static_cast<std::int32_t>(sequence.diagonal),
        parameters_.window_left, parameters_.window_right);
    return {{0, static_cast<std::int32_t>(sequence.q_len), 0, edges.key_end, edges.lower_slope,
             edges.lower_offset, edges.upper_slope, edges.upper_offset},
            -1};
  }

  // Stores the slices that touch the tile of `rows` and `keys`, and what the tile sees through
  // them: range_of(band), the keys of a tile of queries or the rows of a tile of keys. The first
  // warp calls it. Returns the number of slices that touch the tile.
  template <class RangeOf>
  __device__ __forceinline__ std::int32_t store_slice_bands(const tile::Range& rows,
                                                            const tile::Range& keys,
                                                            const RangeOf& range_of) {
    const std::int32_t lane = threadIdx.x % 32;
    const std::int32_t slices = static_cast<std::int32_t>(parameters_.problem.slices.count);
    std::int32_t found = 0;
    tile::Range visible = {INT32_MAX, 0};
    for (std::int32_t group = next_box(0, rows, keys); group < slices;
         group = next_box(group + tile::kBandsOfBox, rows, keys)) {
      const tile::Band band = slice_band(group + lane);
      const tile::Range range = range_of(band);
      const bool touches = range.begin < range.end;
      const unsigned all = __ballot_sync(~0u, touches);
      const std::int32_t slot = found + __popc(all & ((1u << lane) - 1u));
      if (touches && slot < kMaxBands) table_.bands[slot] = band;
      if (touches) visible = {min(visible.begin, range.begin), max(visible.end, range.end)};
      found += __popc(all);
    }
    visible = {__reduce_min_sync(~0u, visible.begin), __reduce_max_sync(~0u, visible.end)};
    __syncwarp();
    if (lane == 0) {
      table_.in_global = found > kMaxBands;
      table_.count = table_.in_global ? slices : found;
      table_.range = found > 0 ? visible : tile::Range{0, 0};
    }
    return found;
  }

  // Returns the first group of bands, from band `i` on, whose box touches the rows and keys. `i`
  // and the result are multiples of kBandsOfBox; the result is not below the number of slices if
  // there is none.
  __device__ __forceinline__ std::int32_t next_box(std::int32_t i, const tile::Range& rows,
                                                   const tile::Range& keys) const {
    if constexpr (!kSearches) return i;
    return tile::next_box(tile::BandTable(parameters_.bands, parameters_.problem.slices.count), i,
                          static_cast<std::int32_t>(parameters_.problem.slices.count), tile_.head,
                          rows, keys);
  }

  // Returns the number of the first band, from number i on, that may touch the rows and keys: one
  // of the table's, or of the boxes that touch them. It is not below table_.count if there is none.
  __device__ __forceinline__ std::int32_t next_band(std::int32_t i, const tile::Range& rows,
                                                    const tile::Range& keys) const {
    return table_.in_global && i % tile::kBandsOfBox == 0 ? next_box(i, rows, keys) : i;
  }

  // Band i of the slices, cut to the sequence. That of another head is a band without rows.
  __device__ __forceinline__ tile::Band slice_band(std::int32_t i) const {
    if (i >= parameters_.problem.slices.count) return tile::Band{};
    tile::count_band_read();
    tile::Band band = parameters_.bands[i];
    band.key_end = min(band.key_end, static_cast<std::int32_t>(tile_.sequence.k_len));
    if (band.head != -1 && band.head != tile_.head) band.row_end = band.row_begin;
    return band;
  }
  __device__ __forceinline__ tile::Band band(std::int32_t i) const {
    return table_.in_global ? slice_band(i) : table_.bands[i];
  }

  // The class of the tile of rows first .. last and keys [keys_begin, keys_end). Each lane
  // classifies against one band at a time.
  __device__ __forceinline__ tile::TileClass classify(std::int32_t first, std::int32_t last,
                                                      std::int32_t keys_begin,
                                                      std::int32_t keys_end) const {
    bool touched = false;
    bool full = false;
    const std::int32_t lane = threadIdx.x % 32;
    const tile::Range rows = {first, last + 1};
    const tile::Range keys = {keys_begin, keys_end};
    for (std::int32_t group = 0; (group = next_band(group, rows, keys)) < table_.count;
         group += tile::kBandsOfBox) {
      if (group + lane >= table_.count) break;
      const tile::TileClass own =
          tile::classify(band(group + lane), first, last, keys_begin, keys_end);
      touched |= own != tile::kEmpty;
      full |= own == tile::kFull;
    }
    if (__any_sync(~0u, full)) return tile::kFull;
    return __any_sync(~0u, touched) ? tile::kPartial : tile::kEmpty;
  }

  const Parameters& parameters_;
  const HeadTile& tile_;
  MaskTable& table_;
};

// The mask of a tile of queries.
template <int kTile>
class Mask : public BandList<true> {
 public:
  using BandList<true>::BandList;

  // Builds the table by the first warp alone, before a barrier.
  __device__ __forceinline__ void build_by_warp() {
    if (parameters_.problem.slices.present()) {
      build_slice_bands();
    } else {
      build_window_band();
    }
  }

  // Builds the table and returns last_tile(). All threads call it. Without slices, each of them
  // computes the last tile, and no barrier is needed.
  __device__ __forceinline__ std::int32_t build() {
    if (!parameters_.problem.slices.present()) return build_window_band();
    if (threadIdx.x < 32) build_slice_bands();
    __syncthreads();
    return last_tile();
  }

  // The last tile that is not empty, or -1. Whole warps call this and the functions below.
  __device__ __forceinline__ std::int32_t last_tile() const {
    return previous_tile(table_.tiles, math::ceil_div(table_.range.end, kTile));
  }

  // The tile that is not empty and comes before `key_tile`, or -1. `tiles` are the table's, or a
  // copy of them.
  __device__ __forceinline__ std::int32_t previous_tile(const TileRanges& tiles,
                                                        std::int32_t key_tile) const {
    // With one band no tile between the first and the last one is empty.
    if (tiles.one) return key_tile > tiles.first ? key_tile - 1 : -1;
    while (--key_tile >= tiles.first) {
      if (tile_class(tiles, key_tile) != tile::kEmpty) return key_tile;
    }
    return -1;
  }

  // The class of a tile that is not empty.
  __device__ __forceinline__ tile::TileClass tile_class(const TileRanges& tiles,
                                                        std::int32_t key_tile) const {
    if (!tiles.one)
      return classify(tile_.first, tile_.last, key_tile * kTile, (key_tile + 1) * kTile);
    return key_tile >= tiles.full_begin && key_tile < tiles.full_end ? tile::kFull : tile::kPartial;
  }

 private:
  // The single band that causal, windows and whole sequences need. The first thread stores it.
  // Returns the last tile, or -1.
  __device__ __forceinline__ std::int32_t build_window_band() {
    const tile::Band band = window_band();
    tile::Range keys = tile::keys_of(band, tile_.first, tile_.last);
    if (keys.begin >= keys.end) keys = {0, 0};
    if (threadIdx.x == 0) {
      table_.bands[0] = band;
      table_.count = 1;
      table_.in_global = false;
      table_.range = keys;
      set_tile_ranges(full_keys(band));
    }
    return math::ceil_div(keys.end, kTile) - 1;
  }

  // The keys that all rows of the tile see through the band.
  __device__ __forceinline__ tile::Range full_keys(const tile::Band& band) const {
    if (band.row_begin > tile_.first || band.row_end <= tile_.last) return {0, 0};
    return {band.begin(tile_.last), band.end(tile_.first)};
  }

  __device__ void build_slice_bands() {
    const std::int32_t found = store_slice_bands(
        {tile_.first, tile_.last + 1}, {0, INT32_MAX},
        [&](const tile::Band& band) { return tile::keys_of(band, tile_.first, tile_.last); });
    if (threadIdx.x % 32 == 0)
      set_tile_ranges(found == 1 ? full_keys(table_.bands[0]) : tile::Range{0, 0});
  }

  __device__ __forceinline__ void set_tile_ranges(const tile::Range& full) {
    table_.tiles = {table_.range.begin / kTile, math::ceil_div(full.begin, kTile), full.end / kTile,
                    table_.count == 1};
  }
};

}  // namespace tilewise::cuda::sm80
