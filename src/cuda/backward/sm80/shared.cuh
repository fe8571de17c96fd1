// The shared memory of a block of the backward pass.
#pragma once

#include "cuda/backward/loaded_key_tile.cuh"
#include "cuda/backward/sm80/kernel_config.h"
#include "cuda/sm80/shared.cuh"

namespace tilewise::cuda::backward::sm80 {

using cuda::sm80::MaskTable;
using cuda::sm80::Rows;

template <KernelConfig kConfig>
struct Shared {
  unsigned char k[kConfig.k_bytes()];
  unsigned char v[kConfig.k_bytes()];
  unsigned char q[kConfig.stages][kConfig.q_bytes()];
  unsigned char dout[kConfig.stages][kConfig.q_bytes()];
  unsigned char probs[kConfig.score_bytes()];      // P (q_tile, k_tile)
  unsigned char gradients[kConfig.score_bytes()];  // dS (q_tile, k_tile)
  float statistics[kConfig.stages][2][kConfig.q_tile];
  LoadedKeyTile<std::uint16_t> tile;
  MaskTable mask;
  std::int32_t pending_turn;                      // block_turns.cuh
  std::uint8_t non_finite_key[kConfig.k_tile];    // K has an element there that is not finite
  std::uint8_t non_finite_query[kConfig.q_tile];  // Q or dO has one; only in the non-finite pass
};

}  // namespace tilewise::cuda::backward::sm80
