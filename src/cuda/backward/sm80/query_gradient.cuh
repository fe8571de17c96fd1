// dQ: where its sums lie in memory, and the kernel that reads them at the end.
#pragma once

#include "cuda/backward/query_tiles.cuh"
#include "cuda/backward/sm80/kernel.h"
#include "cuda/backward/sm80/store_fragments.cuh"
#include "cuda/host/sequences.cuh"

namespace tilewise::cuda::backward::sm80 {

// dQ of a tile of queries is computed in parts of at most 128 columns, which take fewer registers.
template <KernelConfig kConfig>
inline constexpr int kQueryParts = kConfig.columns > 128 ? kConfig.columns / 128 : 1;

// The warp's share of a part of dQ.
template <KernelConfig kConfig>
using QueryGradient = WarpTile<kConfig.q_tile, kConfig.columns / kQueryParts<kConfig>,
                               kConfig.warps, kConfig.query_row_warps>;

// Where a lane's first number of a part of dQ of a tile lies in dq_sums. The next one lies 32
// further, so that the lanes of a warp add to neighbouring numbers.
template <KernelConfig kConfig>
__device__ __forceinline__ float* lane_dq_sums(const Parameters& parameters, std::int32_t number,
                                               int part) {
  using Gradient = QueryGradient<kConfig>;
  constexpr int kLaneCount = Gradient::kRowBlocks * Gradient::kCount;
  const std::uint32_t thread = threadIdx.x;
  const std::int64_t warp =
      (std::int64_t{number} * kQueryParts<kConfig> + part) * kConfig.warps + thread / 32;
  return parameters.dq_sums + warp * 32 * kLaneCount + thread % 32;
}

// Writes dQ of a tile of queries from its sums.
template <int kRow, bool kFp16>
__global__ void __launch_bounds__(kKernels[kRow].config(kFp16).threads())
    dq_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kKernels[kRow].config(kFp16);
  using Gradient = QueryGradient<kConfig>;
  const Problem& problem = parameters.problem;
  const std::int32_t index = static_cast<std::int32_t>(blockIdx.x);
  if (index >= query_tiles(parameters)) return;
  const tile::TileCoord coord = query_tile_coord(parameters, index);
  const Sequence sequence = sequence_at(problem, parameters.table, coord.batch);
  const std::int32_t number = first_query_tile(parameters, coord.batch, coord.head) + coord.q_tile;
  const std::int32_t first = coord.q_tile * kConfig.q_tile;
  const std::int64_t batch = problem.q_packed ? 0 : sequence.batch;
#pragma unroll 1
  for (int part = 0; part < kQueryParts<kConfig>; ++part) {
    const float* const sums = lane_dq_sums<kConfig>(parameters, number, part);
    typename Gradient::Fragments dq;
#pragma unroll
    for (int i = 0; i < Gradient::kRowBlocks * Gradient::kCount; ++i)
      dq[i / Gradient::kCount][i % Gradient::kCount] = sums[32 * i];
    constexpr int kPartColumns = kConfig.columns / kQueryParts<kConfig>;
    const Destination to = {
        problem.dq,
        problem.dq.offset(batch, coord.head, sequence.q_start + first) + part * kPartColumns,
        math::min(static_cast<std::int32_t>(sequence.q_len) - first, kConfig.q_tile),
        static_cast<std::int32_t>(problem.head_dim) - part * kPartColumns,
        static_cast<float>(problem.scale)};
    store_fragments<Gradient, kFp16>(to, dq);
  }
}

}  // namespace tilewise::cuda::backward::sm80
