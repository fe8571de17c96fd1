// Which rows of a tile of queries see a key, as bits: the columns of a fragment of S^T are queries.
#pragma once

#include "cuda/tile/bands.h"
#include "cuda/tile/fragment.h"
#include "cuda/tile/mask_bits.h"
#include "math/integer.h"

namespace tilewise::cuda::mask {

// The rows that see the key through the band, of the columns of a lane. Rows end with q_len.
__device__ __forceinline__ std::uint32_t rows_that_see(const tile::Band& band, std::int32_t key,
                                                       std::int32_t q_len,
                                                       const tile::FragmentColumns& columns) {
  const tile::Range rows = math::tile_rows(band, key, key + 1);
  const std::int32_t end = math::min(rows.end, q_len);
  if (rows.begin >= end) return 0;
  return tile::low_bits(columns(end)) & ~tile::low_bits(columns(rows.begin));
}

}  // namespace tilewise::cuda::mask
