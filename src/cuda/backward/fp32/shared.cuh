// The shared memory of a block of the fp32 backward pass.
#pragma once

#include "cuda/backward/fp32/kernel_table.h"
#include "cuda/backward/loaded_key_tile.cuh"
#include "cuda/sm80/shared.cuh"

namespace tilewise::cuda::backward::fp32 {

template <KernelConfig kConfig>
struct Shared {
  alignas(16) float k[kConfig.k_tile * kConfig.row()];
  float v[kConfig.k_tile * kConfig.row()];
  float q[kConfig.q_tile * kConfig.row()];
  float dout[kConfig.q_tile * kConfig.row()];
  float scores[kConfig.q_tile * kConfig.score_row()];  // P, then dS
  float statistics[2][kConfig.q_tile];                 // LSE * log2(e), then delta
  LoadedKeyTile<float> tile;
  cuda::sm80::MaskTable mask;
  std::int32_t pending_turn;                    // block_turns.cuh
  std::uint8_t non_finite_key[kConfig.k_tile];  // K has an element there that is not finite
};

}  // namespace tilewise::cuda::backward::fp32
