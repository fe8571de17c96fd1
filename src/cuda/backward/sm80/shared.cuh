// The shared memory of a block of the backward pass.
#pragma once

#include "cuda/backward/parameters.h"
#include "cuda/backward/sm80/kernel_config.h"
#include "cuda/sm80/shared.cuh"

namespace tilewise::cuda::backward::sm80 {

using cuda::sm80::MaskTable;
using cuda::sm80::Rows;

// The tile of keys of a block, and the head whose queries it visits.
struct KeyTile : cuda::sm80::HeadTile {
  std::int32_t kv_head;
  std::int32_t first_query_tile;  // the number of the head's first tile of queries
  Rows q, k, v, dout;
};

template <KernelConfig kConfig>
struct Shared {
  unsigned char k[kConfig.k_bytes()];
  unsigned char v[kConfig.k_bytes()];
  unsigned char q[kConfig.stages][kConfig.q_bytes()];
  unsigned char dout[kConfig.stages][kConfig.q_bytes()];
  unsigned char probs[kConfig.score_bytes()];      // P (q_tile, k_tile)
  unsigned char gradients[kConfig.score_bytes()];  // dS (q_tile, k_tile)
  float statistics[kConfig.stages][2][kConfig.q_tile];
  KeyTile tile;
  MaskTable mask;
  std::int32_t pending_turn;                      // turns.cuh
  std::uint8_t non_finite_key[kConfig.k_tile];    // K has an element there that is not finite
  std::uint8_t non_finite_query[kConfig.q_tile];  // likewise Q or dO; only in the non-finite pass
};

}  // namespace tilewise::cuda::backward::sm80
