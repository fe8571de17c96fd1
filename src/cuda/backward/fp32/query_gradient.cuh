// dQ in fp32: the kernel that reads its sums at the end.
#pragma once

#include "cuda/backward/fp32/kernel.h"
#include "cuda/backward/fp32/layout.h"
#include "cuda/backward/fp32/store.cuh"
#include "cuda/backward/query_gradient.cuh"

namespace tilewise::cuda::backward::fp32 {

template <KernelConfig kConfig>
__device__ __forceinline__ float* own_dq_sums(const Parameters& parameters, std::int32_t number,
                                              int part) {
  using Gradient = QueryGradient<kConfig>;
  return thread_dq_sums<Gradient::kRows * Gradient::kColumns, kQueryParts<kConfig>, kConfig.warps>(
      parameters, number, part);
}

// Writes dQ of a tile of queries from its sums.
template <int kRow>
__global__ void __launch_bounds__(kKernels[kRow].config().threads())
    dq_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kKernels[kRow].config();
  using Gradient = QueryGradient<kConfig>;
  const std::int32_t index = static_cast<std::int32_t>(blockIdx.x);
  if (index >= query_tiles(parameters)) return;
  const int thread = static_cast<int>(threadIdx.x);
  const tile::TileCoord coord = query_tile_coord(parameters, index);
  const std::int32_t number = query_tile_number(parameters, coord);
#pragma unroll 1
  for (int part = 0; part < kQueryParts<kConfig>; ++part) {
    const float* sums = own_dq_sums<kConfig>(parameters, number, part);
    const Destination to =
        dq_destination(parameters, coord, part * (kConfig.columns / kQueryParts<kConfig>));
#pragma unroll
    for (int i = 0; i < Gradient::kRows; ++i) {
#pragma unroll
      for (int m = 0; m < Gradient::kColumnRuns; ++m, sums += 32 * kVector) {
        const float run[kVector] = {sums[0], sums[32], sums[64], sums[96]};
        store_run(to, Gradient::row(thread, i), Gradient::column_run(thread, m), run);
      }
    }
  }
}

}  // namespace tilewise::cuda::backward::fp32
