// The places of the sums of dQ in memory, and the kernel that reads them at the end.
#pragma once

#include "cuda/backward/query_tiles.cuh"
#include "cuda/backward/sm90/kernel.h"
#include "cuda/backward/sm90/store_rows.cuh"
#include "cuda/host/sequences.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/swizzle.h"

namespace tilewise::cuda::backward::sm90 {

// dQ of a tile of queries is blocks (64, 64), one for each consumer warpgroup, of both blocks of a
// pair.
inline constexpr int kBlockRegisters = 32;  // registers of a thread

template <KernelConfig kConfig>
struct QueryBlock {
  static constexpr int kPanels = kConfig.columns / tile::kPanelColumns;
  int row_panel;  // 64 queries
  int panel;      // 64 columns

  __device__ __forceinline__ explicit QueryBlock(int number)
      : row_panel(number / kPanels), panel(number % kPanels) {}
};

// The sums of a block are in the order of the registers: thread t of a warpgroup has numbers 4 t to
// 4 t + 3, and the next four kSumsStep further.
inline constexpr int kSumsStep = 128 * 4;
inline constexpr int kBlockNumbers = 128 * kBlockRegisters;

// `number`: of the tile of queries.
template <KernelConfig kConfig>
__device__ __forceinline__ float* block_dq_sums(const Parameters& parameters, std::int32_t number,
                                                int block) {
  const std::int64_t first = std::int64_t{number} * kConfig.dq_blocks() + block;
  return parameters.dq_sums + first * kBlockNumbers;
}

// Writes dQ of a tile of queries from its sums.
template <int kRow, bool kFp16>
__global__ void __launch_bounds__(128 * kKernels[kRow].config(kFp16).dq_blocks())
    dq_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kKernels[kRow].config(kFp16);
  const Problem& problem = parameters.problem;
  const std::int32_t index = static_cast<std::int32_t>(blockIdx.x);
  if (index >= query_tiles(parameters)) return;
  const tile::TileCoord coord = query_tile_coord(parameters, index);
  const Sequence sequence = sequence_at(problem, parameters.table, coord.batch);
  const std::int32_t number = first_query_tile(parameters, coord.batch, coord.head) + coord.q_tile;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const QueryBlock<kConfig> block(warpgroup);
  const std::int32_t first = coord.q_tile * kConfig.q_tile + block.row_panel * tile::kRows;
  const std::int64_t batch = problem.q_packed ? 0 : sequence.batch;
  const std::int32_t first_column = block.panel * tile::kPanelColumns;
  const float* const sums = block_dq_sums<kConfig>(parameters, number, warpgroup) + thread * 4;
  const Destination to = {
      problem.dq, problem.dq.offset(batch, coord.head, sequence.q_start + first),
      math::min(static_cast<std::int32_t>(sequence.q_len) - first, tile::kRows),
      static_cast<std::int32_t>(problem.head_dim), static_cast<float>(problem.scale)};
  float dq[kBlockRegisters];
#pragma unroll
  for (int i = 0; i < kBlockRegisters / 4; ++i) {
    const float4 four = *reinterpret_cast<const float4*>(sums + i * kSumsStep);
    dq[4 * i] = four.x;
    dq[4 * i + 1] = four.y;
    dq[4 * i + 2] = four.z;
    dq[4 * i + 3] = four.w;
  }
  __shared__ __align__(16) StagedPanel staged[4 * kConfig.dq_blocks()];
  store_panel<kFp16>(to, thread / 32 * tile::kWarpRows, first_column, parameters.wide_dq,
                     staged[threadIdx.x / 32], dq);
}

}  // namespace tilewise::cuda::backward::sm90
