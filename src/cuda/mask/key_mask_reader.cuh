// Which rows see the keys of a tile of keys, by tiles of queries, through slices or a window and a
// boolean mask, for the kernel that classifies them (classify.cu).
#pragma once

#include "cuda/mask/key_bits.cuh"
#include "cuda/mask/mask_reader.cuh"

namespace tilewise::cuda::mask {

class KeyMaskReader : public MaskReader {
 public:
  __device__ KeyMaskReader(const MaskParameters& parameters, std::int32_t list, std::int32_t first,
                           const Tiling& tiling)
      : MaskReader(parameters, list), q_tile_(tiling.other), tile_end_(first + tiling.own) {
    rows_ = {0, q_len_};
    keys_ = {first, math::min(tile_end_, k_len_)};
  }

  // The class of a tile of queries. One that reaches beyond the last query, or whose keys reach
  // beyond the last key, is partial.
  __device__ tile::TileClass classify(std::int32_t q_tile) const {
    const tile::Range rows = rows_of(q_tile);
    if (keys_.begin >= keys_.end || rows.begin >= q_len_) return tile::kEmpty;
    const tile::TileClass result =
        MaskReader::classify({rows.begin, math::min(rows.end, q_len_)}, keys_);
    const bool whole = rows.end <= q_len_ && tile_end_ <= k_len_;
    return result == tile::kFull && !whole ? tile::kPartial : result;
  }

  // Which rows of a tile of queries see a key of the tile. None sees a key after the last one, and
  // none after the last query sees any. Whole warps, of 32 keys.
  __device__ RowBits bits(std::int32_t number, std::int32_t q_tile, StagedMask&) const {
    const std::int32_t key = keys_.begin + number;
    const tile::Range rows = rows_of(q_tile);
    RowBits bits = {};
    if (key >= keys_.end) return bits;
    visit({rows.begin, math::min(rows.end, q_len_)}, {key, key + 1}, [&](const tile::Band& band) {
#pragma unroll
      for (int lane = 0; lane < kLanesPerRow; ++lane) {
        bits.lane[lane] |= rows_that_see(band, key, q_len_, {rows.begin, tile::lane_column(lane)});
      }
    });
    for (std::uint32_t& own : bits.lane) own &= tile::all_columns(q_tile_);
    if (problem_.mask.present()) clear_masked(rows, key, bits);
    return bits;
  }

  __device__ bool owns(std::int32_t) const { return true; }

 private:
  __device__ tile::Range rows_of(std::int32_t q_tile) const {
    return {q_tile * q_tile_, (q_tile + 1) * q_tile_};
  }

  // Clears the bits of the rows that the boolean mask forbids to see the key. A warp reads 32 keys
  // of a row at once.
  __device__ void clear_masked(const tile::Range& rows, std::int32_t key, RowBits& bits) const {
    const problem::View& view = problem_.mask;
    const auto* const mask =
        static_cast<const std::uint8_t*>(view.data) + view.offset(batch_, head_, rows.begin, key);
    constexpr std::int32_t kAtOnce = 8;  // rows: two of each lane
    const std::int32_t count = math::min(rows.end, q_len_) - rows.begin;
#pragma unroll 1
    for (std::int32_t first = 0; first < count; first += kAtOnce) {
      std::uint32_t masked = 0;
#pragma unroll
      for (std::int32_t i = 0; i < kAtOnce; ++i) {
        const bool seen = first + i < count && mask[(first + i) * view.row] != 0;
        masked |= seen ? 0 : 1u << i;
      }
#pragma unroll
      for (int lane = 0; lane < kLanesPerRow; ++lane)
        bits.lane[lane] &= ~((masked >> 2 * lane & 3u) << first / 4);
    }
  }

  std::int32_t q_tile_;
  std::int32_t tile_end_;
};

}  // namespace tilewise::cuda::mask
