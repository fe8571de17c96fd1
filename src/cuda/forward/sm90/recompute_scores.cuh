// The scores of a warp once more, after the product of the warpgroup.
#pragma once

#include "cuda/forward/sm90/config.h"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/ldmatrix_tile.h"
#include "cuda/tile/swizzle.h"

namespace tilewise::cuda::sm90 {

// scores (16, kKeys) = Q K^T of the warp's rows by mma.sync, in the registers that wgmma uses
// (tile/fragment.h), with the same bits. Whole warps, with no product of the warpgroup in flight.
// q, k: shared addresses of the warpgroup's rows, and of keys of a tile.
template <KernelConfig kConfig, int kKeys>
__device__ __forceinline__ void recompute_scores(std::uint32_t q, std::uint32_t k,
                                                 float (&scores)[kKeys / 2]) {
  using Panel = tile::LdmatrixTile<tile::kPanelColumns>;
  constexpr int kPanelSteps = tile::kPanelColumns / 16;
  // Derived again each time: the loops have no register for it.
  const int thread = static_cast<int>(ptx::opaque(threadIdx.x)) % 128;
  const int lane = thread % 32;
  const int warp = thread / 32;
  q += Panel::place(warp * tile::kWarpRows + tile::lane_row_first(lane),
                    tile::lane_chunk_first(lane));
  k += Panel::place(tile::lane_row_second(lane), tile::lane_chunk_second(lane));
#pragma unroll
  for (float& score : scores) score = 0;
  // 64 keys at a time, for fewer operands at once.
  constexpr int kKeysAtOnce = 64;
#pragma unroll
  for (int first = 0; first < kKeys; first += kKeysAtOnce) {
#pragma unroll 1
    for (int step = 0; step < kConfig.head_dim / 16; ++step) {
      const int panel = step / kPanelSteps;
      std::uint32_t a[4];
      ptx::ldmatrix_x4(a, tile::step_address<tile::kPanelColumns>(q, step % kPanelSteps) +
                              panel * tile::kRows * tile::kPanelRowBytes);
      const std::uint32_t keys = tile::step_address<tile::kPanelColumns>(k, step % kPanelSteps) +
                                 panel * kConfig.k_tile * tile::kPanelRowBytes;
#pragma unroll
      for (int key = first; key < first + kKeysAtOnce; key += 16) {
        std::uint32_t b[4];
        ptx::ldmatrix_x4(b, keys + key * tile::kPanelRowBytes);
        ptx::mma_m16n8k16<kConfig.fp16>(&scores[key / 2], a, b[0], b[1]);
        ptx::mma_m16n8k16<kConfig.fp16>(&scores[key / 2 + 4], a, b[2], b[3]);
      }
    }
  }
  __syncwarp();
}

}  // namespace tilewise::cuda::sm90
