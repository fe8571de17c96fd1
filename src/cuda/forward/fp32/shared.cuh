// The shared memory of a block.
#pragma once

#include "cuda/forward/fp32/kernel_table.h"
#include "cuda/sm80/shared.cuh"

namespace tilewise::cuda::fp32 {

using Rows = sm80::RowsOf<float>;
using WorkTile = sm80::WorkTileOf<float>;

template <KernelConfig kConfig>
struct Shared {
  alignas(16) float q[kConfig.q_tile() * kConfig.row()];
  float k[kConfig.k_tile * kConfig.row()];
  float v[kConfig.k_tile * kConfig.columns];
  float probs[kConfig.q_tile() * kConfig.chunk_row()];  // 16 rows for each warp
  WorkTile tile;
  sm80::MaskTable mask;
  float prob_shift;  // s: probs are 2^-s times as large (sm80/large_values.cuh)
};

}  // namespace tilewise::cuda::fp32
