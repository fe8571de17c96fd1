// Reads the keys that the rows of a tile of queries see, through slices or a window and a boolean
// mask, for the kernel that classifies key tiles (classify.cu).
#pragma once

#include "cuda/mask/mask_reader.cuh"

namespace tilewise::cuda::mask {

class QueryMaskReader : public MaskReader {
 public:
  __device__ QueryMaskReader(const MaskParameters& parameters, std::int32_t list,
                             std::int32_t first, const Tiling& tiling)
      : MaskReader(parameters, list), k_tile_(tiling.other) {
    rows_ = {first, math::min(first + tiling.own, q_len_)};
    keys_ = {0, k_len_};
  }

  // The class of a key tile.
  __device__ tile::TileClass classify(std::int32_t key) const {
    const tile::Range keys = {key * k_tile_, (key + 1) * k_tile_};
    if (rows_.begin >= rows_.end || keys.begin >= k_len_) return tile::kEmpty;
    return MaskReader::classify(rows_, keys);
  }

  // The columns of a key tile that a row of the query tile sees. For a row after the last one, all
  // bits are set. Whole warps, of 32 rows.
  __device__ RowBits bits(std::int32_t number, std::int32_t key, StagedMask& staged) const {
    const std::int32_t row = rows_.begin + number;
    const std::uint32_t all = tile::all_columns(k_tile_);
    const tile::Range keys = {key * k_tile_, (key + 1) * k_tile_};
    const bool is_staged = problem_.mask.present() && stage_mask(row, keys, staged);
    if (row >= rows_.end) return {all, all, all, all};
    RowBits bits = {};
    const auto add = [&](const tile::Band& band) {
      const tile::Range own = math::visible_keys(band, row);
      if (own.begin >= keys.end || own.end <= keys.begin) return;
#pragma unroll
      for (int lane = 0; lane < kLanesPerRow; ++lane) {
        bits.lane[lane] |= tile::visible_bits(
            band, row, tile::FragmentColumns{keys.begin, tile::lane_column(lane)});
      }
    };
    visit({row, row + 1}, keys, add);
    for (std::uint32_t& own : bits.lane) own &= all;
    if (is_staged) {
      clear_masked(staged.sixteen + threadIdx.x % 32 * kLoads, bits);
    } else if (problem_.mask.present()) {
      clear_masked(row, keys.begin, bits);
    }
    return bits;
  }

  __device__ bool owns(std::int32_t number) const { return rows_.begin + number < rows_.end; }

 private:
  // Reads the boolean mask of a warp's 32 rows into shared memory, a whole line of a row at a time;
  // false: its rows do not allow that. row: of this lane. Whole warps.
  __device__ bool stage_mask(std::int32_t row, const tile::Range& keys, StagedMask& staged) const {
    const problem::View& view = problem_.mask;
    const auto* const mask =
        static_cast<const std::uint8_t*>(view.data) + view.offset(batch_, head_, 0, keys.begin);
    constexpr std::int64_t kLoadBytes = sizeof(uint4);
    if (view.column != 1 || view.row % kLoadBytes != 0 || keys.end > k_len_ ||
        reinterpret_cast<std::uintptr_t>(mask) % kLoadBytes != 0)
      return false;
    const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x) % 32;
    const std::int32_t loads = k_tile_ / 16;  // of a row, and of a lane
    const std::int32_t at_once = 32 / loads;  // rows
    const std::int32_t column = lane % loads;
    constexpr int kInFlight = 4;
    __syncwarp();  // the rows before have been read
#pragma unroll 1
    for (std::int32_t first = lane / loads; first < 32; first += kInFlight * at_once) {
      uint4 loaded[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const std::int32_t own = math::min(row - lane + first + i * at_once, rows_.end - 1);
        loaded[i] = *reinterpret_cast<const uint4*>(mask + own * view.row + column * kLoadBytes);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i)
        staged.sixteen[(first + i * at_once) * kLoads + column] = seen_by_lanes(loaded[i]);
    }
    __syncwarp();
    return true;
  }
  // 16 columns of the mask as four bits for each of four lanes.
  __device__ __forceinline__ static std::uint16_t seen_by_lanes(const uint4& bytes) {
    const auto pair = [](std::uint32_t x) { return (x & 1u) | (x >> 7 & 2u); };
    const std::uint32_t x = non_zero_bytes(bytes.x);
    const std::uint32_t y = non_zero_bytes(bytes.y);
    const std::uint32_t z = non_zero_bytes(bytes.z);
    const std::uint32_t w = non_zero_bytes(bytes.w);
    return static_cast<std::uint16_t>(pair(x) | pair(z) << 2 | pair(x >> 16) << 4 |
                                      pair(z >> 16) << 6 | pair(y) << 8 | pair(w) << 10 |
                                      pair(y >> 16) << 12 | pair(w >> 16) << 14);
  }
  // Clears the bits of keys that a row of the staged mask masks.
  __device__ void clear_masked(const std::uint16_t* seen, RowBits& bits) const {
#pragma unroll
    for (int lane = 0; lane < kLanesPerRow; ++lane) {
      std::uint32_t own = 0;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        if (i < k_tile_ / 16) own |= (std::uint32_t{seen[i]} >> 4 * lane & 15u) << 4 * i;
      }
      bits.lane[lane] &= own;
    }
  }
  // The same, key by key from `first` on.
  __device__ void clear_masked(std::int32_t row, std::int32_t first, RowBits& bits) const {
    const problem::View& view = problem_.mask;
    const auto* const mask =
        static_cast<const std::uint8_t*>(view.data) + view.offset(batch_, head_, row, first);
    const std::int32_t columns = math::min(k_tile_, k_len_ - first);
#pragma unroll 1
    for (std::int32_t column = 0; column < columns; ++column) {
      if (mask[column * view.column] != 0) continue;
      const std::uint32_t others = ~(1u << (column / 8 * 2 + column % 2));
#pragma unroll
      for (int lane = 0; lane < kLanesPerRow; ++lane)
        bits.lane[lane] &= lane == column % 8 / 2 ? others : ~0u;
    }
  }

  static constexpr int kLoads = 8;  // of a row of 128 keys

  std::int32_t k_tile_;
};

}  // namespace tilewise::cuda::mask
