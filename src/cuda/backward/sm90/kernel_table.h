// The compiled Hopper backward kernels. Each row is compiled for bf16 and for fp16; CMakeLists.txt
// generates the source files.
#pragma once

#include <cstdint>

#include "cuda/backward/sm90/kernel_config.h"

namespace tilewise::cuda::backward::sm90 {

// The first row that fits a problem is used. A thread's registers hold dK and dV (columns / 2
// each), S and dP (q_tile / 2 each), and P and dS in 16 bits. With 64 columns they have no room for
// a score mod: such heads are padded.
inline constexpr TileRow kKernels[] = {
    {64, 128, 2, false, false,
     "64 queries: by count 1.2 times the shared-memory traffic; not measured"},
    {64, 128, 2, true, false, "as without"},
    {128, 64, 2, false, false, "registers are full: 64 for dK and dV each, 32 for S and dP each"},
    {128, 64, 2, false, true, "as without"},
    {128, 64, 2, true, false, "as without"},
    {128, 64, 2, true, true, "as without"},
    {256, 64, 2, false, false,
     "a pair of blocks: registers are full, 128 for dK or dV; shared memory has one stage of dO"},
};
inline constexpr int kKernelRows = static_cast<int>(sizeof(kKernels) / sizeof(kKernels[0]));
inline constexpr std::int64_t kMaxColumns = 256;
inline constexpr std::int64_t kMaxOptionColumns = 128;  // with a block mask or a score mod

// The row of the table for head dimensions up to `columns`, at most kMaxColumns or
// kMaxOptionColumns.
constexpr int tile_row(std::int64_t columns, bool block_mask, bool score_mod) {
  int row = 0;
  while (kKernels[row].columns < columns || kKernels[row].block_mask != block_mask ||
         kKernels[row].score_mod != score_mod)
    ++row;
  return row;
}

}  // namespace tilewise::cuda::backward::sm90
