// The shared memory of one of the two blocks of a pair.
#pragma once

#include "cuda/backward/key_tile.cuh"
#include "cuda/backward/sm90/kernel_config.h"
#include "cuda/backward/sm90/parameters.h"
#include "cuda/ptx/cluster.cuh"
#include "cuda/sm80/shared.cuh"
#include "cuda/sm90/pipeline.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/swizzle.h"

namespace tilewise::cuda::backward::sm90::pair {

using cuda::sm80::MaskTable;
using cuda::sm90::PipelineState;
using cuda::sm90::StageBarriers;

inline constexpr int kBlocks = 2;                            // of a pair
inline constexpr int kKeys = tile::kRows;                    // of a block
inline constexpr int kWarps = 4 * KernelConfig::kConsumers;  // that consume, of a block
static_assert(kBlocks * kKeys == KernelConfig::kKTile);

// Tiles of (rows, columns) lie in panels of 64 columns (tile/swizzle.h).
template <KernelConfig kConfig>
struct Shared {
  static constexpr int kPanelBytes = 64 * tile::kPanelRowBytes;  // of 64 keys or queries
  static constexpr int kPanels = kConfig.columns / tile::kPanelColumns;
  static constexpr int kOwnPanels = kPanels / kBlocks;  // of dQ: the block's half of the columns
  static_assert(kConfig.q_tile == 64 && kOwnPanels == KernelConfig::kConsumers);

  unsigned char k[kPanels * kPanelBytes];
  unsigned char v[kPanels * kPanelBytes];
  unsigned char peer_k[kOwnPanels * kPanelBytes];  // the other block's keys, for this half of dQ
  unsigned char q[kConfig.stages][kPanels * kPanelBytes];
  unsigned char dout[kPanels * kPanelBytes];
  unsigned char gradients[kPanelBytes];         // P^T, then dS^T in the same place (keys, q_tile)
  unsigned char peer_gradients[kPanelBytes];    // the other block's dS^T
  float dq[KernelConfig::kConsumers][64 * 64];  // of each warpgroup
  float statistics[kConfig.stages][2][kConfig.q_tile];  // they arrive with Q
  StageBarriers<kConfig.stages> q_barriers;             // emptied by the warps of both blocks,
  StageBarriers<1> dout_barriers;                       // because each loads a half for both
  StageBarriers<1> dq_barriers[KernelConfig::kConsumers];
  std::uint64_t probs_full;       // P^T is in `gradients`
  std::uint64_t gradients_full;   // dS^T is in both places
  std::uint64_t gradients_empty;  // dQ has read them, in both blocks
  std::uint64_t keys_full;
  std::int32_t index;  // of the pair's tile of keys
  KeyTile tile;        // of both blocks
  MaskTable mask;
  std::int32_t found_non_finite;                  // the block's dK or dV is not finite
  std::int32_t second_pass;                       // both blocks compute again
  std::int32_t non_finite_keys;                   // K has an element that is not finite
  std::uint8_t non_finite_key[kKeys];             // there
  std::uint8_t non_finite_query[kConfig.q_tile];  // dO has one there; only in the non-finite pass
};

template <KernelConfig kConfig>
__device__ __forceinline__ void init_barriers(Shared<kConfig>& shared) {
  const auto init = [](std::uint64_t& barrier, std::uint32_t arrivals) {
    ptx::mbarrier_init(ptx::shared_address(&barrier), arrivals);
  };
  for (int stage = 0; stage < kConfig.stages; ++stage) {
    init(shared.q_barriers.full[stage], 2);  // Q and its statistics
    init(shared.q_barriers.empty[stage], kBlocks * kWarps);
  }
  init(shared.dout_barriers.full[0], 1);
  init(shared.dout_barriers.empty[0], kBlocks * kWarps);
  for (StageBarriers<1>& dq : shared.dq_barriers) {
    init(dq.full[0], 4);
    init(dq.empty[0], 1);
  }
  init(shared.probs_full, 4);
  init(shared.gradients_full, 4);
  init(shared.gradients_empty, kBlocks * kWarps);
  init(shared.keys_full, 1);
  ptx::fence_mbarrier_init();
}

}  // namespace tilewise::cuda::backward::sm90::pair
