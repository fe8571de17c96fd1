// Stores fragments as rows of a gradient.
#pragma once

#include "cuda/backward/sm80/gemm.cuh"
#include "cuda/backward/store.cuh"
#include "cuda/tile/fragment.h"

namespace tilewise::cuda::backward::sm80 {

// Stores a warp's part of a tile, times the scale.
template <class WarpTile, bool kFp16>
__device__ __forceinline__ void store_fragments(const Destination& to,
                                                const typename WarpTile::Fragments& fragments) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int row_block = 0; row_block < WarpTile::kRowBlocks; ++row_block) {
#pragma unroll
    for (int r = 0; r < WarpTile::kCount; r += 2) {
      const std::int32_t row =
          WarpTile::row() + row_block * 16 + tile::lane_row(lane, tile::register_row(r));
      const std::int32_t column =
          WarpTile::column() + tile::register_column(r) + tile::lane_column(lane);
      store_pair<kFp16>(to, row, column, fragments[row_block][r] * to.scale,
                        fragments[row_block][r + 1] * to.scale);
    }
  }
}

}  // namespace tilewise::cuda::backward::sm80
