// Stores fragments as rows of a gradient, or as a tile of shared memory.
#pragma once

#include "cuda/backward/sm80/gemm.cuh"
#include "cuda/backward/store.cuh"
#include "cuda/tile/fragment.h"

namespace tilewise::cuda::backward::sm80 {

// Writes a warp's part of P or dS (queries, kKeys) to shared memory, in 16 bits.
template <class Scores, int kKeys, bool kFp16>
__device__ __forceinline__ void stage_fragments(const typename Scores::Fragments& values,
                                                unsigned char* to) {
  using Layout = tile::LdmatrixTile<kKeys>;
  const std::uint32_t thread = ptx::opaque(threadIdx.x);
  const int lane = static_cast<int>(thread % 32);
  const std::uint32_t start =
      Layout::place(Scores::row(thread) + lane / 4, Scores::column(thread) / 8);
#pragma unroll
  for (int row_block = 0; row_block < Scores::kRowBlocks; ++row_block) {
#pragma unroll
    for (int r = 0; r < Scores::kCount; r += 2) {
      const int row = 16 * row_block + 8 * tile::register_row(r);
      unsigned char* const at =
          to + tile::chunk_address<kKeys>(start, r / 4) + row * Layout::kRowBytes + lane % 4 * 4;
      *reinterpret_cast<std::uint32_t*>(at) =
          ptx::pack<kFp16>(values[row_block][r], values[row_block][r + 1]);
    }
  }
}

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
