// The structured mask of a tile of keys: the tiles of queries that see it, and their classes.
#pragma once

#include "cuda/sm80/mask_table.cuh"

namespace tilewise::cuda::backward {

// Whether a block searches the list of slices. The kernel of D 128 with tiles of 64 x 128 would
// spill registers for the search.
constexpr bool searches_slices(int q_tile, int k_tile) { return q_tile != 64 || k_tile != 128; }

// The table's tiles are tiles of queries here.
template <int kQTile, int kKTile>
class QueryMask : public cuda::sm80::BandList<searches_slices(kQTile, kKTile)> {
 public:
  using Base = cuda::sm80::BandList<searches_slices(kQTile, kKTile)>;
  using Base::Base;

  // Builds the table by the first warp alone, before a barrier.
  __device__ __forceinline__ void build_by_warp() {
    const auto rows_of = [&](const tile::Band& band) {
      const tile::Range rows = math::tile_rows(band, tile_.first, tile_.first + kKTile);
      return rows.begin < rows.end ? rows : tile::Range{0, 0};
    };
    if (parameters_.problem.slices.present()) {
      this->store_slice_bands({0, INT32_MAX}, {tile_.first, tile_.first + kKTile}, rows_of);
    } else if (threadIdx.x == 0) {
      table_.bands[0] = this->window_band();
      table_.count = 1;
      table_.in_global = false;
      table_.range = rows_of(table_.bands[0]);
    }
    if (threadIdx.x != 0) return;
    const bool one = table_.count == 1;
    const tile::Range full = one ? full_rows(table_.bands[0]) : tile::Range{0, 0};
    table_.tiles = {table_.range.begin / kQTile, math::ceil_div(full.begin, kQTile),
                    full.end / kQTile, one};
  }

  // The tiles of queries from the first to the last one that sees the keys.
  __device__ __forceinline__ tile::Range tiles() const {
    return {table_.tiles.first, math::ceil_div(table_.range.end, kQTile)};
  }

  // With one band: the tiles of queries that see all keys. One that reaches beyond the sequence's
  // last query or last key is none.
  __device__ __forceinline__ tile::Range full_tiles() const {
    return {table_.tiles.full_begin, table_.tiles.full_end};
  }

  // The first tile of queries that sees the keys, or -1. Whole warps call this and the functions
  // below.
  __device__ __forceinline__ std::int32_t first_tile() const {
    return next_tile(table_.tiles.first - 1);
  }

  // The tile after `q_tile` that sees the keys, or -1.
  __device__ __forceinline__ std::int32_t next_tile(std::int32_t q_tile) const {
    const std::int32_t end = table_.range.end;
    // With one band no tile between the first and the last one is empty.
    if (table_.tiles.one) return (q_tile + 1) * kQTile < end ? q_tile + 1 : -1;
    while (++q_tile * kQTile < end) {
      if (tile_class(q_tile) != tile::kEmpty) return q_tile;
    }
    return -1;
  }

  __device__ __forceinline__ bool sees_keys(std::int32_t q_tile) const {
    return q_tile >= table_.tiles.first && next_tile(q_tile - 1) == q_tile;
  }

  // The block's turn to add to dQ of a tile of queries (turns.cuh): the number of tiles of keys
  // that come before this one and that the queries see. With slices all tiles before this one
  // count, because only their own blocks find out which of them are empty.
  __device__ __forceinline__ unsigned long long turn(std::int32_t q_tile) const {
    const std::int32_t key_tile = tile_.first / kKTile;
    if (parameters_.problem.slices.present()) return key_tile;
    const tile::Range keys =
        tile::keys_of(table_.bands[0], q_tile * kQTile, q_tile * kQTile + kQTile - 1);
    if (parameters_.problem.window_right >= 0) return (keys.end - 1) / kKTile - key_tile;
    return key_tile - keys.begin / kKTile;
  }

  // The class of a tile from first_tile() on. One that reaches beyond the sequence's last query or
  // last key is partial.
  __device__ __forceinline__ tile::TileClass tile_class(std::int32_t q_tile) const {
    const cuda::sm80::TileRanges tiles = table_.tiles;
    if (tiles.one) {
      return q_tile >= tiles.full_begin && q_tile < tiles.full_end ? tile::kFull : tile::kPartial;
    }
    return this->classify(q_tile * kQTile, q_tile * kQTile + kQTile - 1, tile_.first,
                          tile_.first + kKTile);
  }

  // The queries that see a lane's keys, which are `step` apart: a bit for each column of the lane
  // in a fragment of S^T. before(x) is the number of its columns before query x.
  template <class Before, int kKeys>
  __device__ __forceinline__ void query_bits(std::int32_t key, int step, const Before& before,
                                             std::uint32_t (&visible)[kKeys]) const {
#pragma unroll
    for (std::uint32_t& bits : visible) bits = 0;
    const tile::Range keys = {key, key + (kKeys - 1) * step + 1};
#pragma unroll 1
    for (std::int32_t i = 0; (i = this->next_band(i, before.range(), keys)) < table_.count; ++i) {
      const tile::Band own = this->band(i);
#pragma unroll
      for (int k = 0; k < kKeys; ++k) {
        const tile::Range rows = math::tile_rows(own, key + k * step, key + k * step + 1);
        visible[k] |= tile::low_bits(before(rows.end)) & ~tile::low_bits(before(rows.begin));
      }
    }
  }

 private:
  using Base::parameters_;
  using Base::table_;
  using Base::tile_;

  // The rows that see all keys of the tile through the band.
  __device__ __forceinline__ tile::Range full_rows(const tile::Band& band) const {
    const std::int32_t last = tile_.first + kKTile;  // of the keys, plus 1
    if (band.key_begin > tile_.first || band.key_end < last) return {0, 0};
    std::int32_t begin = band.row_begin;
    std::int32_t end = band.row_end;
    if (band.upper_slope != 0) begin = math::max(begin, last - band.upper_offset);
    if (band.lower_slope != 0) end = math::min(end, tile_.first - band.lower_offset + 1);
    const bool cut = (band.upper_slope == 0 && band.upper_offset < last) ||
                     (band.lower_slope == 0 && band.lower_offset > tile_.first);
    return begin < end && !cut ? tile::Range{begin, end} : tile::Range{0, 0};
  }
};

}  // namespace tilewise::cuda::backward
