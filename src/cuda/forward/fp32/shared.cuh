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
  bool non_finite_pass;
  // In the non-finite pass, a bit for each row of a thread: it sees an operand that is not finite.
  std::uint8_t sees_non_finite[kConfig.threads()];
  // Rows of Q and keys with an operand that is not finite.
  std::uint8_t non_finite_row[kConfig.q_tile()];
  std::uint8_t non_finite_key[kConfig.k_tile];
};

}  // namespace tilewise::cuda::fp32
