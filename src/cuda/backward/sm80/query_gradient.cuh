// dQ: the kernel that reads its sums at the end.
#pragma once

#include "cuda/backward/query_gradient.cuh"
#include "cuda/backward/sm80/kernel.h"
#include "cuda/backward/sm80/store_fragments.cuh"

namespace tilewise::cuda::backward::sm80 {

// dQ of a tile of queries is computed in parts of at most 128 columns, which take fewer registers.
template <KernelConfig kConfig>
inline constexpr int kQueryParts = kConfig.columns > 128 ? kConfig.columns / 128 : 1;

// The warp's share of a part of dQ.
template <KernelConfig kConfig>
using QueryGradient = WarpTile<kConfig.q_tile, kConfig.columns / kQueryParts<kConfig>,
                               kConfig.warps, kConfig.query_row_warps>;

template <KernelConfig kConfig>
__device__ __forceinline__ float* lane_dq_sums(const Parameters& parameters, std::int32_t number,
                                               int part) {
  using Gradient = QueryGradient<kConfig>;
  return thread_dq_sums<Gradient::kRowBlocks * Gradient::kCount, kQueryParts<kConfig>,
                        kConfig.warps>(parameters, number, part);
}

// Writes dQ of a tile of queries from its sums.
template <KernelConfig kConfig>
__device__ __forceinline__ void write_dq(const Parameters& parameters) {
  using Gradient = QueryGradient<kConfig>;
  const std::int32_t index = static_cast<std::int32_t>(blockIdx.x);
  if (index >= query_tiles(parameters)) return;
  const tile::TileCoord coord = query_tile_coord(parameters, index);
  const std::int32_t number = query_tile_number(parameters, coord);
#pragma unroll 1
  for (int part = 0; part < kQueryParts<kConfig>; ++part) {
    const float* const sums = lane_dq_sums<kConfig>(parameters, number, part);
    typename Gradient::Fragments dq;
#pragma unroll
    for (int i = 0; i < Gradient::kRowBlocks * Gradient::kCount; ++i)
      dq[i / Gradient::kCount][i % Gradient::kCount] = sums[32 * i];
    constexpr int kPartColumns = kConfig.columns / kQueryParts<kConfig>;
    store_fragments<Gradient, kConfig.fp16>(dq_destination(parameters, coord, part * kPartColumns),
                                            dq);
  }
}

template <int kRow, bool kFp16>
__global__ void __launch_bounds__(kKernels[kRow].config(kFp16).threads())
    dq_kernel(const __grid_constant__ Parameters parameters) {
  write_dq<kKernels[kRow].config(kFp16)>(parameters);
}

}  // namespace tilewise::cuda::backward::sm80
