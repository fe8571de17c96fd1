// The code that the readers of the masks of queries and of keys share: the sequence of a list, and
// the bands that touch a tile of the owner.
#pragma once

#include "cuda/host/sequences.cuh"
#include "cuda/mask/block_mask.h"
#include "cuda/mask/visit_bands.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/window_band.h"
#include "math/integer.h"

namespace tilewise::cuda::mask {

using tile::kLanesPerRow;

// The window, or the slices that touch a tile of the owner, if they are few.
struct TileBands {
  static constexpr unsigned kMost = 128;
  unsigned count;
  tile::Band bands[kMost];
};

// The part of the boolean mask that a warp has read, 16 columns in each number.
struct alignas(16) StagedMask {
  std::uint16_t sixteen[256];
};

// The columns of a tile of the other side that a row of the owner's tile sees, or the rows that see
// the key, for each of the four lanes that share it.
struct RowBits {
  std::uint32_t lane[kLanesPerRow];
};

// The masks of one list. rows, keys: what a tile of the owner may touch.
class MaskReader {
 public:
  __device__ MaskReader(const MaskParameters& parameters, std::int32_t list)
      : problem_(parameters.problem),
        bands_(parameters.mask.bands),
        slices_(static_cast<std::int32_t>(problem_.slices.count)) {
    const std::int32_t heads =
        parameters.mask.head_step != 0 ? static_cast<std::int32_t>(problem_.heads) : 1;
    batch_ = list / heads;
    head_ = list % heads;
    const Sequence sequence = sequence_at(problem_, nullptr, batch_);
    q_len_ = static_cast<std::int32_t>(sequence.q_len);
    k_len_ = static_cast<std::int32_t>(sequence.k_len);
  }

  // Copies the window, or the slices that touch the tile, to shared memory, if they fit. All
  // threads of the block; a barrier must follow.
  __device__ void collect_bands(const MaskParameters& parameters, TileBands& own) {
    own_ = &own;
    if (!problem_.slices.present()) {
      if (threadIdx.x != 0) return;
      own.bands[0] = window_band(parameters);
      own.count = 1;
      return;
    }
    const std::int32_t warps = static_cast<std::int32_t>(blockDim.x) / 32;
    const std::int32_t warp = static_cast<std::int32_t>(threadIdx.x) / 32;
    const tile::BandTable table(bands_, slices_);
    for (std::int32_t box = warp; box * tile::kBandsOfBox < slices_; box += warps) {
      if (!table.outer[box / tile::kBoxesOfBox].touches(head_, rows_, keys_) ||
          !table.boxes[box].touches(head_, rows_, keys_))
        continue;
      const std::int32_t i = box * tile::kBandsOfBox + static_cast<std::int32_t>(threadIdx.x) % 32;
      if (i >= slices_) continue;
      tile::count_band_read();
      tile::Band band = bands_[i];
      band.key_end = math::min(band.key_end, k_len_);
      const bool touches = (band.head == -1 || band.head == head_) && band.row_begin < rows_.end &&
                           band.row_end > rows_.begin && band.key_begin < keys_.end &&
                           band.key_end > keys_.begin;
      if (!touches) continue;
      const unsigned slot = atomicAdd(&own.count, 1u);
      if (slot < TileBands::kMost) own.bands[slot] = band;
    }
  }

 protected:
  // Bit 8 n of the result is set where byte n is not zero.
  __device__ __forceinline__ static std::uint32_t non_zero_bytes(std::uint32_t x) {
    return (((x & 0x7F7F7F7Fu) + 0x7F7F7F7Fu) | x) >> 7 & 0x01010101u;
  }

  // The class of a tile as the slices or the window have it: full only where one of them shows all,
  // and not where the boolean mask has still to be asked.
  __device__ tile::TileClass classify(const tile::Range& rows, const tile::Range& keys) const {
    tile::TileClass result = tile::kEmpty;
    visit(rows, keys, [&](const tile::Band& band) {
      const tile::TileClass own =
          tile::classify(band, rows.begin, rows.end - 1, keys.begin, keys.end);
      if (own > result) result = own;
    });
    return result == tile::kFull && problem_.mask.present() ? tile::kPartial : result;
  }

  __device__ tile::Band window_band(const MaskParameters& parameters) const {
    const Sequence sequence = sequence_at(problem_, nullptr, batch_);
    const tile::WindowBand edges =
        tile::window_band(k_len_, static_cast<std::int32_t>(sequence.diagonal),
                          parameters.window_left, parameters.window_right);
    return {{0, q_len_, 0, k_len_, edges.lower_slope, edges.lower_offset, edges.upper_slope,
             edges.upper_offset},
            -1};
  }

  // Calls visit(band) for the window, or the slices that may show some of the keys to some of the
  // rows.
  template <class Visit>
  __device__ __forceinline__ void visit(const tile::Range& rows, const tile::Range& keys,
                                        const Visit& visit) const {
    if (own_->count > TileBands::kMost)
      return visit_bands(bands_, slices_, head_, k_len_, rows, keys, visit);
#pragma unroll 1
    for (unsigned i = 0; i < own_->count; ++i) visit(own_->bands[i]);
  }

  const problem::Problem& problem_;
  const TileBands* own_ = nullptr;
  const tile::Band* bands_;
  std::int32_t slices_;
  std::int32_t batch_, head_;
  std::int32_t q_len_, k_len_;
  tile::Range rows_ = {0, 0}, keys_ = {0, 0};  // of the tile of the owner, which ends with it
};

}  // namespace tilewise::cuda::mask
