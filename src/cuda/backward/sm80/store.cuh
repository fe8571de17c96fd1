// Stores fragments as rows of a gradient.
#pragma once

#include "cuda/backward/sm80/gemm.cuh"
#include "cuda/ptx/arithmetic.cuh"
#include "cuda/tile/fragment.h"
#include "math/number.h"
#include "problem/problem.h"

namespace tilewise::cuda::backward::sm80 {

// Where the rows of a tile of a gradient go.
struct Destination {
  const problem::View& view;
  std::int64_t offset;   // of the tile's first row
  std::int32_t rows;     // of the tile that exist
  std::int32_t columns;  // D or Dv
  float scale;

  template <class Element>
  __device__ __forceinline__ Element* at(std::int32_t row) const {
    return static_cast<Element*>(view.data) + offset + row * view.row;
  }
};

// Two neighbouring numbers of a row, of which `count` exist.
template <bool kFp16>
__device__ __forceinline__ void store_pair(const Destination& to, std::int32_t row,
                                           std::int32_t column, float low, float high) {
  const std::int32_t count = to.columns - column;
  if (row >= to.rows || count <= 0) return;
  if (to.view.dtype == TILEWISE_FP32) {
    float* const at = to.at<float>(row) + column;
    at[0] = low;
    if (count > 1) at[1] = high;
    return;
  }
  std::uint16_t* const at = to.at<std::uint16_t>(row) + column;
  const std::uint32_t pair = ptx::pack<kFp16>(low, high);
  if (count > 1 && reinterpret_cast<std::uintptr_t>(at) % 4 == 0) {
    *reinterpret_cast<std::uint32_t*>(at) = pair;
    return;
  }
  at[0] = static_cast<std::uint16_t>(pair);
  if (count > 1) at[1] = static_cast<std::uint16_t>(pair >> 16);
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
