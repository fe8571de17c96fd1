// The shared memory of a block of the Hopper backward kernel.
#pragma once

#include <type_traits>

#include "cuda/backward/key_tile.cuh"
#include "cuda/backward/sm90/kernel_config.h"
#include "cuda/backward/sm90/parameters.h"
#include "cuda/sm80/shared.cuh"
#include "cuda/sm90/pipeline.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/swizzle.h"

namespace tilewise::cuda::backward::sm90 {

using cuda::sm80::MaskTable;
using cuda::sm90::PipelineState;
using cuda::sm90::StageBarriers;

// Up to three further tiles have been loaded when the reducer reaches a tile.
inline constexpr int kListedOrder = 4;

struct ListedTile {
  std::int32_t q_tile;
  std::int32_t head;
};

// The loaded tiles of a kernel with a block mask.
template <KernelConfig kConfig>
struct ListedTiles {
  static_assert(2 * kConfig.stages == kListedOrder);
  // The queries of a partial tile that see a key, for each of the four lanes that share the key.
  alignas(16) std::uint32_t bits[kConfig.stages][KernelConfig::kKTile * tile::kLanesPerRow];
  std::int32_t bits_of[kConfig.stages];  // KeyTile::bits of the tile that is loaded
  ListedTile order[kListedOrder];        // the tiles, in turns
};
struct NoListedTiles {};

inline constexpr int kScoreStages = 2;  // the other warpgroup may still read the last dS

// Tiles of (rows, columns) lie in panels of 64 columns (tile/swizzle.h).
template <KernelConfig kConfig>
struct Shared {
  unsigned char k[kConfig.k_bytes()];
  unsigned char v[kConfig.k_bytes()];
  unsigned char q[kConfig.stages][kConfig.q_bytes()];
  unsigned char dout[kConfig.stages][kConfig.q_bytes()];
  unsigned char gradients[kScoreStages][kConfig.score_bytes()];  // dS^T (k_tile, q_tile)
  float statistics[kConfig.stages][2][kConfig.q_tile];           // they arrive with Q
  float dq[KernelConfig::kConsumers][64 * 64];                   // of each warpgroup
  std::conditional_t<kConfig.block_mask, ListedTiles<kConfig>, NoListedTiles> listed;
  StageBarriers<kConfig.stages> q_barriers, dout_barriers;
  StageBarriers<1> dq_barriers[KernelConfig::kConsumers];
  std::uint64_t gradients_full[kScoreStages];
  std::uint64_t keys_full;
  KeyTile tile;
  MaskTable mask;
  std::uint64_t pass_end;         // all consumers have checked whether dK and dV are finite
  std::int32_t found_non_finite;  // they are not
  std::int32_t non_finite_keys;   // K has an element that is not finite
  std::uint8_t non_finite_key[KernelConfig::kKTile];  // there
  std::uint8_t non_finite_query[kConfig.q_tile];  // dO has one there; only in the non-finite pass
};

template <KernelConfig kConfig>
__device__ __forceinline__ void init_barriers(Shared<kConfig>& shared) {
  constexpr std::uint32_t kWarps = 4 * KernelConfig::kConsumers;
  for (StageBarriers<kConfig.stages>* const ring : {&shared.q_barriers, &shared.dout_barriers}) {
    for (int stage = 0; stage < kConfig.stages; ++stage) {
      ptx::mbarrier_init(ptx::shared_address(&ring->full[stage]), 1);
      ptx::mbarrier_init(ptx::shared_address(&ring->empty[stage]), kWarps);
    }
  }
  for (StageBarriers<1>& dq : shared.dq_barriers) {
    ptx::mbarrier_init(ptx::shared_address(&dq.full[0]), 4);
    ptx::mbarrier_init(ptx::shared_address(&dq.empty[0]), 1);
  }
  for (std::uint64_t& full : shared.gradients_full)
    ptx::mbarrier_init(ptx::shared_address(&full), kWarps);
  ptx::mbarrier_init(ptx::shared_address(&shared.keys_full), 1);
  ptx::mbarrier_init(ptx::shared_address(&shared.pass_end), kWarps);
  ptx::fence_mbarrier_init();
}

}  // namespace tilewise::cuda::backward::sm90
