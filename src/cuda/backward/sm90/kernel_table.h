// The compiled Hopper backward kernels. Each row is compiled for bf16 and for fp16; CMakeLists.txt
// generates the source files.
#pragma once

#include <cstdint>

#include "cuda/backward/sm90/kernel_config.h"

namespace tilewise::cuda::backward::sm90 {

// The first row that fits a problem is used. A thread's registers hold dK and dV (columns / 2 each)
// and S and dP (q_tile / 2 each).
inline constexpr TileRow kKernels[] = {
    {64, 128, 2, "64 queries: by count 1.2 times the shared-memory traffic; not measured"},
    {128, 64, 2, "registers are full: 64 for dK and dV each, 32 for S and dP each"},
};
inline constexpr int kKernelRows = static_cast<int>(sizeof(kKernels) / sizeof(kKernels[0]));
inline constexpr std::int64_t kMaxColumns = 128;

// The row of the table for head dimensions up to `columns`, at most kMaxColumns.
constexpr int tile_row(std::int64_t columns) { return columns <= kKernels[0].columns ? 0 : 1; }

}  // namespace tilewise::cuda::backward::sm90
