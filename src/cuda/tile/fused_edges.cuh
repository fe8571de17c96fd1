// Two cut key tiles in the registers of one: what a row sees of one tile it does not see of the
// other (forward/sm90/fused_edges.cuh). `hidden` are the lane's columns (bands.h) of the first tile
// that its rows do not see.
#pragma once

#include "cuda/ptx/arithmetic.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/score_mod.cuh"

namespace tilewise::cuda::tile {

// Takes hidden scores of one tile from the other, row by row as apply_mask_bits() does. kFirst:
// `scores` are of the first tile and `others` of the last one; else the other way round.
template <bool kFirst, int kCount>
__device__ __forceinline__ void merge_tiles(float (&scores)[kCount], const float (&others)[kCount],
                                            const std::uint32_t (&hidden)[kRowsPerLane]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int n = i % (kCount / 2);  // of a row
    const int r = n / 2 * 4 + i / (kCount / 2) * 2 + n % 2;
    const bool of_last = (hidden[register_row(r)] >> FragmentLayout::bit(r) & 1) != 0;
    scores[r] = of_last == kFirst ? others[r] : scores[r];
  }
}

// A mask for a pair of probs (pack_probs()): ones in the halves that belong to the last tile.
template <int kPair>
__device__ __forceinline__ std::uint32_t last_tile_bits(
    const std::uint32_t (&hidden)[kRowsPerLane]) {
  constexpr int kBit = FragmentLayout::bit(2 * kPair);
  const std::uint32_t bits = hidden[register_row(2 * kPair)];
  // Signs of bytes: eight shifts of a row's bits serve all of its pairs.
  return ptx::spread_signs<kBit / 8>(bits << (7 - kBit % 8), bits << (6 - kBit % 8));
}

// The probs of both tiles as operands for the V of each: 0 where they belong to the other. Those of
// the first tile are needed first; those of the last one stay in `both` until there is time.
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
