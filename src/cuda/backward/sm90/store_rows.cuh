// Stores a warp's rows of a gradient.
#pragma once

#include "cuda/backward/store.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/swizzle.h"

namespace tilewise::cuda::backward::sm90 {

// The memory in which a warp stages 16 rows of 64 columns of 16-bit numbers.
struct StagedPanel {
  unsigned char bytes[tile::kWarpRows * tile::kPanelRowBytes];
};

// Stores 64 columns of the warp's 16 rows, times the scale. Register r of `values` lies where
// tile/fragment.h says. Rows from `row` on; `first_column` of the gradient. wide: 16 bytes at a
// time, by way of `staged`, which all lanes share.
template <bool kFp16>
__device__ __forceinline__ void store_panel(const Destination& to, std::int32_t row,
                                            std::int32_t first_column, bool wide,
                                            StagedPanel& staged, const float* values) {
  constexpr int kRegisters = tile::kPanelColumns / 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (!wide) {
#pragma unroll
    for (int r = 0; r < kRegisters; r += 2) {
      store_pair<kFp16>(to, row + tile::lane_row(lane, tile::register_row(r)),
                        first_column + tile::register_column(r) + tile::lane_column(lane),
                        values[r] * to.scale, values[r + 1] * to.scale);
    }
    return;
  }
  __syncwarp();
#pragma unroll
  for (int r = 0; r < kRegisters; r += 2) {
    const int at = tile::lane_row(lane, tile::register_row(r));
    const int byte = (tile::register_column(r) + tile::lane_column(lane)) * 2;
    *reinterpret_cast<std::uint32_t*>(staged.bytes + tile::swizzled(at, byte)) =
        ptx::pack<kFp16>(values[r] * to.scale, values[r + 1] * to.scale);
  }
  __syncwarp();
  constexpr int kChunks = tile::kPanelRowBytes / tile::kChunkBytes;
  const std::int32_t column = first_column + lane % kChunks * 8;
#pragma unroll
  for (int i = 0; i < tile::kWarpRows; i += 32 / kChunks) {
    const int at = i + lane / kChunks;
    if (row + at >= to.rows || column >= to.columns) continue;
    *reinterpret_cast<uint4*>(to.at<std::uint16_t>(row + at) + column) =
        *reinterpret_cast<const uint4*>(staged.bytes +
                                        tile::swizzled(at, lane % kChunks * tile::kChunkBytes));
  }
}

}  // namespace tilewise::cuda::backward::sm90
