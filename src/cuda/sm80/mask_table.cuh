// The bands of a tile of queries, and what they make of tiles of kTile keys. What is known of them
// lies in shared memory.
#pragma once

#include "cuda/host/sequences.cuh"
#include "cuda/sm80/parameters.h"
#include "cuda/sm80/shared.cuh"
#include "cuda/tile/mask_bits.h"
#include "cuda/tile/window_band.h"
#include "math/integer.h"

namespace tilewise::cuda::sm80 {

template <int kTile>
class Mask {
 public:
  __device__ Mask(const Parameters& parameters, const Place& tile, MaskTable& table)
      : parameters_(parameters), tile_(tile), table_(table) {}

  // Fills the table; the first warp, before a barrier.
  __device__ __forceinline__ void gather() {
    if (parameters_.problem.slices.present()) {
      gather_slices();
    } else {
      take_window();
    }
  }

  // The same for all threads, which need not wait for each other to know the last tile where there
  // are no slices: what last() returns.
  __device__ __forceinline__ std::int32_t open() {
    if (!parameters_.problem.slices.present()) return take_window();
    if (threadIdx.x < 32) gather_slices();
    __syncthreads();
    return last();
  }

  // The last tile that is not empty, or -1. Whole warps, as all that follows.
  __device__ __forceinline__ std::int32_t last() const {
    return before(table_.tiles, math::ceil_div(table_.keys.end, kTile));
  }

  // The next tile that is not empty before tile `key`; -1: there is no more. tiles: the table's, or
  // a copy.
  __device__ __forceinline__ std::int32_t before(const TileRanges& tiles, std::int32_t key) const {
    // With one band no tile between the first and the last one is empty.
    if (tiles.one) return key > tiles.first ? key - 1 : -1;
    while (--key >= tiles.first) {
      if (kind(tiles, key) != tile::kEmpty) return key;
    }
    return -1;
  }

  // What a tile that is not empty is.
  __device__ __forceinline__ tile::TileClass kind(const TileRanges& tiles, std::int32_t key) const {
    if (!tiles.one) return classify(key * kTile, (key + 1) * kTile);
    return key >= tiles.full_begin && key < tiles.full_end ? tile::kFull : tile::kPartial;
  }

  // From here on no tile is full, which the rules need not look at. All threads, before a barrier.
  __device__ __forceinline__ void forget_full() {
    table_.no_full = true;
    table_.tiles.full_end = 0;
  }

  // Visible columns of a lane's rows, which are `step` apart: a bit for each column of the lane, of
  // which before(x) lie before key x. A band is read once for all rows.
  template <class Before, int kRows>
  __device__ __forceinline__ void see(std::int32_t row, int step, const Before& before,
                                      std::uint32_t (&visible)[kRows]) const {
#pragma unroll
    for (std::uint32_t& bits : visible) bits = 0;
#pragma unroll 1
    for (std::int32_t i = 0; i < table_.count; ++i) {
      const tile::Band seen = band(i);
#pragma unroll
      for (int of = 0; of < kRows; ++of)
        visible[of] |= tile::visible_bits(seen, row + of * step, before);
    }
  }

 private:
  // The one band there is without slices; the first thread keeps it. Returns the last tile, or -1.
  __device__ __forceinline__ std::int32_t take_window() {
    const Sequence& sequence = tile_.sequence;
    const tile::WindowBand edges = tile::window_band(
        static_cast<std::int32_t>(sequence.k_len), static_cast<std::int32_t>(sequence.diagonal),
        parameters_.window_left, parameters_.window_right);
    const tile::Band band = {
        {0, static_cast<std::int32_t>(sequence.q_len), 0, edges.key_end, edges.lower_slope,
         edges.lower_offset, edges.upper_slope, edges.upper_offset},
        -1};
    tile::Range keys = tile::keys_of(band, tile_.first, tile_.last);
    if (keys.begin >= keys.end) keys = {0, 0};
    if (threadIdx.x == 0) {
      table_.bands[0] = band;
      table_.count = 1;
      table_.in_memory = false;
      table_.keys = keys;
      take_tiles(full_of(band));
    }
    return math::ceil_div(keys.end, kTile) - 1;
  }

  __device__ __forceinline__ tile::Range full_of(const tile::Band& band) const {
    if (band.row_begin > tile_.first || band.row_end <= tile_.last) return {0, 0};
    return {band.begin(tile_.last), band.end(tile_.first)};
  }

  // Those slices that touch the tile, in the order of the list.
  __device__ void gather_slices() {
    const std::int32_t lane = threadIdx.x % 32;
    const std::int32_t slices = static_cast<std::int32_t>(parameters_.problem.slices.count);
    std::int32_t found = 0;
    tile::Range seen = {INT32_MAX, 0};
    for (std::int32_t i = lane; i - lane < slices; i += 32) {
      const tile::Band band = listed(i);
      const tile::Range keys = tile::keys_of(band, tile_.first, tile_.last);
      const bool touches = keys.begin < keys.end;
      const unsigned all = __ballot_sync(~0u, touches);
      const std::int32_t place = found + __popc(all & ((1u << lane) - 1u));
      if (touches && place < kMaxBands) table_.bands[place] = band;
      if (touches) seen = {min(seen.begin, keys.begin), max(seen.end, keys.end)};
      found += __popc(all);
    }
    seen = {__reduce_min_sync(~0u, seen.begin), __reduce_max_sync(~0u, seen.end)};
    __syncwarp();
    if (lane != 0) return;
    table_.in_memory = found > kMaxBands;
    table_.count = table_.in_memory ? slices : found;
    table_.keys = found > 0 ? seen : tile::Range{0, 0};
    take_tiles(found == 1 ? full_of(table_.bands[0]) : tile::Range{0, 0});
  }

  __device__ __forceinline__ void take_tiles(const tile::Range& full) {
    table_.no_full = false;
    table_.tiles = {table_.keys.begin / kTile, math::ceil_div(full.begin, kTile), full.end / kTile,
                    table_.count == 1};
  }

  // Slice i, cut to the sequence; no row sees anything through one of another head.
  __device__ __forceinline__ tile::Band listed(std::int32_t i) const {
    if (i >= parameters_.problem.slices.count) return tile::Band{};
    tile::Band band = parameters_.bands[i];
    band.key_end = min(band.key_end, static_cast<std::int32_t>(tile_.sequence.k_len));
    if (band.head != -1 && band.head != tile_.head) band.row_end = band.row_begin;
    return band;
  }

  __device__ __forceinline__ tile::Band band(std::int32_t i) const {
    return table_.in_memory ? listed(i) : table_.bands[i];
  }

  // A lane looks at one band at a time.
  __device__ __forceinline__ tile::TileClass classify(std::int32_t keys_begin,
                                                      std::int32_t keys_end) const {
    bool touched = false;
    bool full = false;
    for (std::int32_t i = threadIdx.x % 32; i < table_.count; i += 32) {
      const tile::TileClass kind =
          tile::classify(band(i), tile_.first, tile_.last, keys_begin, keys_end);
      touched |= kind != tile::kEmpty;
      full |= kind == tile::kFull;
    }
    if (__any_sync(~0u, full)) return table_.no_full ? tile::kPartial : tile::kFull;
    return __any_sync(~0u, touched) ? tile::kPartial : tile::kEmpty;
  }

  const Parameters& parameters_;
  const Place& tile_;
  MaskTable& table_;
};

}  // namespace tilewise::cuda::sm80
