// Tiles of a tensor between global and shared memory by TMA, and what describes the tensor to it.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/tile/swizzle.h"

namespace tilewise::cuda::sm90 {

// Where a tile comes from; head and batch are coordinates of the tensor map.
struct TmaSource {
  const CUtensorMap* map;
  std::int32_t row;
  std::int32_t head;
  std::int32_t batch;
};

// Loads a tile (kRows, kColumns) into its panels, which are as wide as the boxes of the map. One
// thread calls it, and makes `full` expect the bytes, before or after.
template <int kRows, int kColumns, int kPanelColumns = tile::kPanelColumns>
__device__ __forceinline__ void tma_load_tile(unsigned char* to, const TmaSource& from,
                                              std::uint64_t& full, ptx::L2Hint hint) {
  const std::uint32_t barrier = ptx::shared_address(&full);
#pragma unroll
  for (int panel = 0; panel < kColumns / kPanelColumns; ++panel) {
    ptx::tma_load(ptx::shared_address(to + panel * kRows * tile::kPanelRowBytes), from.map,
                  panel * kPanelColumns, from.row, from.head, from.batch, barrier, hint);
  }
}

// Prefetches a tile of kColumns columns into L2. One thread; nothing waits for it.
template <int kColumns>
__device__ __forceinline__ void tma_prefetch_tile(const TmaSource& from, ptx::L2Hint hint) {
#pragma unroll
  for (int panel = 0; panel < kColumns / tile::kPanelColumns; ++panel) {
    ptx::tma_prefetch(from.map, panel * tile::kPanelColumns, from.row, from.head, from.batch, hint);
  }
}

}  // namespace tilewise::cuda::sm90
