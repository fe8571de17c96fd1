// Two cut key tiles in the registers of one. This works where a row sees of the last tile exactly
// the columns that it does not see of the first one (forward/sm90/fused_edges.cuh). `hidden` holds
// the mask bits (mask_bits.h) of the columns of the first tile that the lane's rows do not see.
#pragma once

#include "cuda/ptx/arithmetic.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/score_mod.cuh"

namespace tilewise::cuda::tile {

// Replaces the hidden scores of one tile by those of the other, in the order of apply_mask_bits().
// kFirst: `scores` belong to the first tile and `others` to the last one; otherwise the other way
// round.
template <bool kFirst, int kCount>
__device__ __forceinline__ void merge_tiles(float (&scores)[kCount], const float (&others)[kCount],
                                            const std::uint32_t (&hidden)[kRowsPerLane]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int n = i % (kCount / 2);  // the column of the row
    const int r = n / 2 * 4 + i / (kCount / 2) * 2 + n % 2;
    const bool of_last = (hidden[register_row(r)] >> FragmentLayout::bit(r) & 1) != 0;
    scores[r] = of_last == kFirst ? others[r] : scores[r];
  }
}

// Returns a mask for a pair of probs (pack_probs()): all ones in each 16-bit half that belongs to
// the last tile.
template <int kPair>
__device__ __forceinline__ std::uint32_t last_tile_bits(
    const std::uint32_t (&hidden)[kRowsPerLane]) {
  constexpr int kBit = FragmentLayout::bit(2 * kPair);
  const std::uint32_t bits = hidden[register_row(2 * kPair)];
  // The bit is moved to the sign of its byte, so that eight shifts of a row's bits serve all pairs.
  return ptx::spread_signs<kBit / 8>(bits << (7 - kBit % 8), bits << (6 - kBit % 8));
}

// Splits the probs of both tiles into the operands for the V of each: a prob is 0 in the operand of
// the tile that it does not belong to. The operand of the first tile is needed first; the probs of
// the last tile stay in `both` until there is time.
template <int kPair = 0, int kCount>
__device__ __forceinline__ void probs_of_first(const std::uint32_t (&both)[kCount],
                                               const std::uint32_t (&hidden)[kRowsPerLane],
                                               std::uint32_t* first) {
  first[kPair] = both[kPair] & ~last_tile_bits<kPair>(hidden);
  if constexpr (kPair + 1 < kCount) probs_of_first<kPair + 1>(both, hidden, first);
}
template <int kPair = 0, int kCount>
__device__ __forceinline__ void probs_of_last(const std::uint32_t (&both)[kCount],
                                              const std::uint32_t (&hidden)[kRowsPerLane],
                                              std::uint32_t* last) {
  last[kPair] = both[kPair] & last_tile_bits<kPair>(hidden);
  if constexpr (kPair + 1 < kCount) probs_of_last<kPair + 1>(both, hidden, last);
}

}  // namespace tilewise::cuda::tile
