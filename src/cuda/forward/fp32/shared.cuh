// The shared memory of a block.
#pragma once

#include "cuda/forward/fp32/kernel_table.h"
#include "cuda/sm80/shared.cuh"

namespace tilewise::cuda::fp32 {

using Rows = sm80::RowsOf<float>;
using Tile = sm80::TileOf<float>;

template <KernelConfig kConfig>
struct Shared {
  alignas(16) float q[kConfig.q_tile() * kConfig.row()];
  float k[kConfig.k_tile * kConfig.row()];
  float v[kConfig.k_tile * kConfig.columns];
  float probs[kConfig.q_tile() * kConfig.chunk_row()];  // of each warp, 16 rows
  Tile tile;
  sm80::MaskTable mask;
  // The non_finite_pass pass: rows of Q and keys with an operand that is not finite; of each
  // thread, a bit for each of its rows that saw one.
  bool non_finite_pass;
  std::uint8_t seen[kConfig.threads()];
  std::uint8_t non_finite_row[kConfig.q_tile()];
  std::uint8_t non_finite_key[kConfig.k_tile];
};

}  // namespace tilewise::cuda::fp32
