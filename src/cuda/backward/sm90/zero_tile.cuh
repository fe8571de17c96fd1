// Replaces non-finite elements in shared memory by zero.
#pragma once

#include "cuda/backward/hidden_values.cuh"
#include "cuda/tile/non_finite.cuh"
#include "cuda/tile/swizzle.h"

namespace tilewise::cuda::backward::sm90 {

// Replaces the non-finite elements of a loaded tile of `panels` panels of kRows rows by zero. Flags
// their rows, unless `flags` is nullptr. Returns whether this thread has found one.
template <bool kFp16, int kRows>
__device__ __forceinline__ bool zero_tile(unsigned char* tile, int panels, std::uint8_t* flags,
                                          const ThreadShare& threads) {
  constexpr int kRowChunks = tile::kPanelRowBytes / tile::kChunkBytes;
  bool found = false;
#pragma unroll 1
  for (int i = threads.index; i < kRows * kRowChunks * panels; i += threads.count) {
    if (!tile::zero_non_finite<kFp16>(reinterpret_cast<uint4*>(tile)[i])) continue;
    if (flags != nullptr) flags[i / kRowChunks % kRows] = 1;
    found = true;
  }
  return found;
}

}  // namespace tilewise::cuda::backward::sm90
