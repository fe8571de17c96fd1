// What the rows of a query tile see of key tiles, through slices or a window and a boolean mask,
// for the kernel that classifies them (block_mask.cu).
#pragma once

#include "cuda/forward/sm90/block_mask.cuh"
#include "cuda/forward/sm90/parameters.h"
#include "cuda/host/sequences.cuh"
#include "cuda/tile/fragment.h"
#include "math/integer.h"

namespace tilewise::cuda::sm90 {

using tile::BlockMask;
using tile::kLanesPerRow;

// The slices that touch a query tile, if they are few.
struct TileBands {
  static constexpr unsigned kMost = 128;
  unsigned count;
  tile::Band bands[kMost];
};

// The boolean mask of 32 rows of a key tile, 16 columns in each number.
struct StagedMask {
  static constexpr int kLoads = 8;
  std::uint16_t of_row[32][kLoads];
};

// What a row sees of a key tile, for each of the four lanes that share it.
struct RowBits {
  std::uint32_t lane[kLanesPerRow];
};

// Reads the masks of a query tile of one list.
class MaskReader {
 public:
  __device__ MaskReader(const Parameters& parameters, std::int32_t list, std::int32_t first,
                        std::int32_t q_tile, std::int32_t k_tile)
      : problem_(parameters.problem),
        bands_(parameters.block_mask.bands),
        slices_(static_cast<std::int32_t>(problem_.slices.count)),
        k_tile_(k_tile) {
    const BlockMask& mask = parameters.block_mask;
    const std::int32_t heads = mask.head_step != 0 ? static_cast<std::int32_t>(problem_.heads) : 1;
    batch_ = list / heads;
    head_ = list % heads;
    const Sequence sequence = sequence_at(problem_, nullptr, batch_);
    q_len_ = static_cast<std::int32_t>(sequence.q_len);
    k_len_ = static_cast<std::int32_t>(sequence.k_len);
    first_ = first;
    last_ = math::min(first + q_tile, q_len_) - 1;
    const tile::WindowBand edges =
        tile::window_band(k_len_, static_cast<std::int32_t>(sequence.diagonal),
                          parameters.scheduler.window_left, parameters.scheduler.window_right);
    window_ = {{0, q_len_, 0, k_len_, edges.lower_slope, edges.lower_offset, edges.upper_slope,
                edges.upper_offset},
               -1};
  }

  // Copies the slices that touch the query tile to shared memory, if they fit. All threads of the
  // block; a barrier must follow.
  __device__ void collect_bands(TileBands& own) {
    own_ = &own;
    const std::int32_t warps = static_cast<std::int32_t>(blockDim.x) / 32;
    const std::int32_t warp = static_cast<std::int32_t>(threadIdx.x) / 32;
    const tile::BandTable table(bands_, slices_);
    const tile::Range rows = {first_, last_ + 1};
    for (std::int32_t box = warp; box * tile::kBandsOfBox < slices_; box += warps) {
      if (!table.outer[box / tile::kBoxesOfBox].touches(head_, rows, {0, k_len_}) ||
          !table.boxes[box].touches(head_, rows, {0, k_len_}))
        continue;
      const std::int32_t i = box * tile::kBandsOfBox + static_cast<std::int32_t>(threadIdx.x) % 32;
      if (i >= slices_) continue;
      tile::count_band_read();
      tile::Band band = bands_[i];
      band.key_end = math::min(band.key_end, k_len_);
      const bool touches = (band.head == -1 || band.head == head_) && band.row_begin <= last_ &&
                           band.row_end > first_;
      if (!touches) continue;
      const unsigned slot = atomicAdd(&own.count, 1u);
      if (slot < TileBands::kMost) own.bands[slot] = band;
    }
  }

  // The class of a key tile as the slices or the window have it: full only where one of them shows
  // all, and not where the boolean mask has still to be asked.
  __device__ tile::TileClass classify(std::int32_t key) const {
    const tile::Range keys = {key * k_tile_, (key + 1) * k_tile_};
    if (first_ > last_ || keys.begin >= k_len_) return tile::kEmpty;
    tile::TileClass result = tile::kEmpty;
    const auto add = [&](const tile::Band& band) {
      const tile::TileClass own = tile::classify(band, first_, last_, keys.begin, keys.end);
      if (own > result) result = own;
    };
    if (problem_.slices.present()) {
      visit({first_, last_ + 1}, keys, add);
    } else {
      add(window_);
    }
    return result == tile::kFull && problem_.mask.present() ? tile::kPartial : result;
  }

  // What a row of the query tile sees of a key tile. Of a row after the last one, all bits are set.
  // Whole warps, of 32 rows.
  __device__ RowBits bits(std::int32_t number, std::int32_t key, StagedMask& staged) const {
    const std::int32_t row = first_ + number;
    const std::uint32_t all = tile::all_columns(k_tile_);
    const tile::Range keys = {key * k_tile_, (key + 1) * k_tile_};
    const bool is_staged = problem_.mask.present() && stage_mask(row, keys, staged);
    if (row > last_) return {all, all, all, all};
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
    if (problem_.slices.present()) {
      visit({row, row + 1}, keys, add);
    } else {
      add(window_);
    }
    for (std::uint32_t& own : bits.lane) own &= all;
    if (is_staged) {
      clear_masked(staged.of_row[threadIdx.x % 32], bits);
    } else if (problem_.mask.present()) {
      clear_masked(row, keys.begin, bits);
    }
    return bits;
  }

  __device__ bool owns(std::int32_t number) const { return first_ + number <= last_; }

 private:
  // Calls visit(band) for the slices that may show some of the keys to some of the rows.
  template <class Visit>
  __device__ __forceinline__ void visit(const tile::Range& rows, const tile::Range& keys,
                                        const Visit& visit) const {
    if (own_->count > TileBands::kMost)
      return visit_bands(bands_, slices_, head_, k_len_, rows, keys, visit);
#pragma unroll 1
    for (unsigned i = 0; i < own_->count; ++i) visit(own_->bands[i]);
  }

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
        const std::int32_t own = math::min(row - lane + first + i * at_once, last_);
        loaded[i] = *reinterpret_cast<const uint4*>(mask + own * view.row + column * kLoadBytes);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i)
        staged.of_row[first + i * at_once][column] = seen_by_lanes(loaded[i]);
    }
    __syncwarp();
    return true;
  }
  // 16 columns of the mask as four bits for each of four lanes.
  __device__ __forceinline__ static std::uint16_t seen_by_lanes(const uint4& bytes) {
    // Bit 8 n of the result is set where byte n is not zero.
    const auto seen = [](std::uint32_t x) {
      return (((x & 0x7F7F7F7Fu) + 0x7F7F7F7Fu) | x) >> 7 & 0x01010101u;
    };
    const auto pair = [](std::uint32_t x) { return (x & 1u) | (x >> 7 & 2u); };
    const std::uint32_t x = seen(bytes.x);
    const std::uint32_t y = seen(bytes.y);
    const std::uint32_t z = seen(bytes.z);
    const std::uint32_t w = seen(bytes.w);
    return static_cast<std::uint16_t>(pair(x) | pair(z) << 2 | pair(x >> 16) << 4 |
                                      pair(z >> 16) << 6 | pair(y) << 8 | pair(w) << 10 |
                                      pair(y >> 16) << 12 | pair(w >> 16) << 14);
  }
  // Clears the bits of keys that a row of the staged mask masks.
  __device__ void clear_masked(const std::uint16_t (&seen)[StagedMask::kLoads],
                               RowBits& bits) const {
#pragma unroll
    for (int lane = 0; lane < kLanesPerRow; ++lane) {
      std::uint32_t own = 0;
#pragma unroll
      for (int i = 0; i < StagedMask::kLoads; ++i) {
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

  const problem::Problem& problem_;
  const TileBands* own_ = nullptr;
  const tile::Band* bands_;
  std::int32_t slices_;
  std::int32_t k_tile_;
  std::int32_t batch_, head_;
  std::int32_t q_len_, k_len_;
  std::int32_t first_, last_;  // rows of the query tile
  tile::Band window_;
};

}  // namespace tilewise::cuda::sm90
