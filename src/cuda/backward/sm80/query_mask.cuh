// The structured mask of a tile of keys: the tiles of queries that see it, and their classes.
#pragma once

#include "cuda/sm80/mask_table.cuh"

namespace tilewise::cuda::backward::sm80 {

template <int kQTile, int kKTile>
class QueryMask : public cuda::sm80::BandList {
 public:
  using BandList::BandList;

  // Builds the table by the first warp alone, before a barrier.
  __device__ __forceinline__ void build_by_warp() {
    const auto rows_of = [&](const tile::Band& band) {
      const tile::Range rows = math::tile_rows(band, tile_.first, tile_.first + kKTile);
      return rows.begin < rows.end ? rows : tile::Range{0, 0};
    };
    if (parameters_.problem.slices.present()) {
      store_slice_bands(rows_of);
    } else if (threadIdx.x == 0) {
      table_.bands[0] = window_band();
      table_.count = 1;
      table_.in_global = false;
      table_.range = rows_of(table_.bands[0]);
    }
  }

  // The first tile of queries that sees the keys, or -1. Whole warps call this and the functions
  // below.
  __device__ __forceinline__ std::int32_t first_tile() const {
    return next_tile(table_.range.begin / kQTile - 1);
  }

  // The tile after `q_tile` that sees the keys, or -1.
  __device__ __forceinline__ std::int32_t next_tile(std::int32_t q_tile) const {
    while (++q_tile * kQTile < table_.range.end) {
      if (tile_class(q_tile) != tile::kEmpty) return q_tile;
    }
    return -1;
  }

  // The first key that a tile of queries sees, without slices.
  __device__ __forceinline__ std::int32_t first_key(std::int32_t q_tile) const {
    return tile::keys_of(table_.bands[0], q_tile * kQTile, q_tile * kQTile + kQTile - 1).begin;
  }

  // A tile that reaches beyond the sequence's last query or last key is partial.
  __device__ __forceinline__ tile::TileClass tile_class(std::int32_t q_tile) const {
    return classify(q_tile * kQTile, q_tile * kQTile + kQTile - 1, tile_.first,
                    tile_.first + kKTile);
  }
};

}  // namespace tilewise::cuda::backward::sm80
