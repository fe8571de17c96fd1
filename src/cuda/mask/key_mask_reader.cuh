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
  __device__ RowBits bits(std::int32_t number, std::int32_t q_tile, StagedMask& staged) const {
    const std::int32_t key = keys_.begin + number;
    const tile::Range rows = rows_of(q_tile);
    RowBits bits = {};
    const bool is_staged = problem_.mask.present() && stage_mask(rows, key, staged);
    if (key >= keys_.end) return bits;
    visit({rows.begin, math::min(rows.end, q_len_)}, {key, key + 1}, [&](const tile::Band& band) {
#pragma unroll
      for (int lane = 0; lane < kLanesPerRow; ++lane) {
        bits.lane[lane] |= rows_that_see(band, key, q_len_, {rows.begin, tile::lane_column(lane)});
      }
    });
    for (std::uint32_t& own : bits.lane) own &= tile::all_columns(q_tile_);
    if (is_staged) {
      clear_masked(staged, bits);
    } else if (problem_.mask.present()) {
      clear_masked(rows, key, bits);
    }
    return bits;
  }

  __device__ bool owns(std::int32_t) const { return true; }

 private:
  __device__ tile::Range rows_of(std::int32_t q_tile) const {
    return {q_tile * q_tile_, (q_tile + 1) * q_tile_};
  }

  // Reads the boolean mask of a warp's 32 keys into shared memory, 16 bytes of a row at a time, of
  // which two lanes have one each; false: its rows do not allow that. key: of this lane. Whole
  // warps.
  __device__ bool stage_mask(const tile::Range& rows, std::int32_t key, StagedMask& staged) const {
    const problem::View& view = problem_.mask;
    const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x) % 32;
    const auto* const mask = static_cast<const std::uint8_t*>(view.data) +
                             view.offset(batch_, head_, rows.begin, key - lane + lane % 2 * 16);
    constexpr std::int64_t kLoadBytes = sizeof(uint4);
    if (view.column != 1 || view.row % kLoadBytes != 0 || tile_end_ > k_len_ ||
        reinterpret_cast<std::uintptr_t>(mask) % kLoadBytes != 0)
      return false;
    constexpr int kInFlight = 4;
    __syncwarp();  // the tile before has been read
#pragma unroll 1
    for (std::int32_t first = lane / 2; first < q_tile_; first += 16 * kInFlight) {
      uint4 loaded[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const std::int32_t row = math::min(first + 16 * i, q_len_ - 1 - rows.begin);
        loaded[i] = *reinterpret_cast<const uint4*>(mask + row * view.row);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i)
        staged.sixteen[lane % 2 * q_tile_ + first + 16 * i] = seen_keys(loaded[i]);
    }
    __syncwarp();
    return true;
  }
  // A bit for each of 16 bytes that is not zero.
  __device__ __forceinline__ static std::uint16_t seen_keys(const uint4& bytes) {
    const auto four = [](std::uint32_t x) { return non_zero_bytes(x) * 0x01020408u >> 24 & 15u; };
    return static_cast<std::uint16_t>(four(bytes.x) | four(bytes.y) << 4 | four(bytes.z) << 8 |
                                      four(bytes.w) << 12);
  }
  // Clears the bits of the rows that the staged mask forbids to see the lane's key.
  __device__ void clear_masked(const StagedMask& staged, RowBits& bits) const {
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t key = lane % 16;
    const auto* const rows =
        reinterpret_cast<const uint4*>(staged.sixteen + lane / 16 * static_cast<unsigned>(q_tile_));
    std::uint32_t seen[kLanesPerRow] = {};
#pragma unroll 1
    for (std::int32_t i = 0; i < q_tile_ / 8; ++i) {
      const uint4 eight = rows[i];  // rows, two for each lane that shares the key
      const std::uint32_t pairs[kLanesPerRow] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (int pair = 0; pair < kLanesPerRow; ++pair)
        seen[pair] |= ((pairs[pair] >> key & 1u) | (pairs[pair] >> (15 + key) & 2u)) << 2 * i;
    }
#pragma unroll
    for (int pair = 0; pair < kLanesPerRow; ++pair) bits.lane[pair] &= seen[pair];
  }

  // The same, row by row. A warp reads 32 keys of a row at once.
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
