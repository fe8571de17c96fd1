// Looks up the keys that rows see through slices in the table of bands (tile/bands.h).
#pragma once

#include "cuda/tile/band_reads.cuh"
#include "cuda/tile/bands.h"
#include "cuda/tile/mask_bits.h"
#include "problem/problem.h"

namespace tilewise::cuda::mask {

// Calls visit(band) for the slices of a head that may show some of `keys` to some of `rows`. Bands
// end with the sequence's keys.
template <class Visit>
__device__ __forceinline__ void visit_bands(const tile::Band* bands, std::int32_t slices,
                                            std::int32_t head, std::int32_t k_len,
                                            const tile::Range& rows, const tile::Range& keys,
                                            const Visit& visit) {
  const tile::BandTable table(bands, slices);
#pragma unroll 1
  for (std::int32_t i = 0;; ++i) {
    if (i % tile::kBandsOfBox == 0) i = tile::next_box(table, i, slices, head, rows, keys);
    if (i >= slices) return;
    tile::count_band_read();
    tile::Band band = bands[i];
    band.key_end = math::min(band.key_end, k_len);
    if (band.head == -1 || band.head == head) visit(band);
  }
}

}  // namespace tilewise::cuda::mask
