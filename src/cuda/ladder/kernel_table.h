// The compiled kernels of the rungs below FlashAttention-2, in the terms of sm80/kernel_config.h.
// Small and large devices run the same kernels.
#pragma once

#include "cuda/backward/sm80/kernel_config.h"
#include "cuda/sm80/kernel_config.h"

namespace tilewise::cuda::ladder {

using sm80::KernelConfig;
using sm80::TileRow;

// A block computes a whole head, so that a multiprocessor runs one block.
inline constexpr TileRow kFlash1Kernels[] = {
    {64, false, sm80::kSmall, 8, 1, 128, 1, false, 1, "many keys: out passes once; not measured"},
    {128, false, sm80::kSmall, 8, 1, 128, 1, false, 1, "Q, K and V fill 99 KB; not measured"},
};
// As many queries as columns: a tile of P fills the shared memory of a tile of K.
inline constexpr TileRow kStandardKernels[] = {
    {64, true, sm80::kSmall, 4, 1, 64, 2, false, 4, "several blocks wait for memory; not measured"},
    {128, true, sm80::kSmall, 8, 1, 64, 2, false, 2,
     "several blocks wait for memory; not measured"},
};
// Backward. FlashAttention-1: a block computes a kv head. Standard attention has the tiles of its
// forward kernels.
inline constexpr backward::sm80::TileRow kFlash1Gradients[] = {
    {64, false, sm80::kSmall, 8, 64, 128, 2, 4, 2, 1, 1, "many keys: dQ passes once; not measured"},
    {128, false, sm80::kSmall, 8, 64, 64, 2, 2, 2, 1, 1, "in 99 KB; not measured"},
};
inline constexpr std::int64_t kMaxColumns = 128;

inline constexpr int kKernelRows = 2;  // of each table

// The row of any table for head dimensions up to `columns`, or -1.
constexpr int tile_row(std::int64_t columns, std::int64_t shared_bytes) {
  if (columns > kMaxColumns || shared_bytes < sm80::kSmall) return -1;
  return columns <= kFlash1Kernels[0].columns ? 0 : 1;
}

}  // namespace tilewise::cuda::ladder
