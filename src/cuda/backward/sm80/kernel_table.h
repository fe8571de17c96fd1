// The compiled backward kernels for Ampere and later. Each row is compiled for bf16 and for fp16;
// CMakeLists.txt generates a source file for every few rows.
#pragma once

#include "cuda/backward/sm80/kernel_config.h"

namespace tilewise::cuda::backward::sm80 {

using cuda::sm80::kHuge;
using cuda::sm80::kLarge;
using cuda::sm80::kSmall;

// The first row that fits a problem is used. A thread's registers hold S and dP, or dQ, and its
// part of dK and dV. The reasons compare full attention at S 16384 on one H200, as the first
// version of these kernels ran.
inline constexpr TileRow kKernels[] = {
    {64, false, kLarge, 8, 128, 128, 4, 4, 4, 1, 1, "64 x 128 15 % slower, 64 x 64 twice 14 %"},
    {64, false, kSmall, 8, 64, 128, 2, 4, 2, 2, 1, "in 99 KB"},
    {64, true, kSmall, 8, 64, 64, 2, 2, 2, 2, 1, "score mods take the registers; not measured"},
    {128, false, kLarge, 8, 64, 128, 2, 4, 2, 2, 1, "one stage 4 % slower, 64 x 64 twice 5 %"},
    {128, false, kSmall, 8, 64, 64, 2, 2, 2, 1, 1, "in 99 KB; not measured"},
    {128, true, kSmall, 8, 64, 64, 2, 2, 2, 1, 1, "score mods take the registers; not measured"},
    {256, false, kHuge, 8, 64, 64, 2, 2, 2, 2, 1, "one stage 5 % slower, 32 queries 25 %"},
    {256, false, kLarge, 8, 64, 64, 2, 2, 2, 1, 1, "in 163 KB"},
    {256, false, kSmall, 4, 32, 32, 2, 2, 2, 1, 1, "in 99 KB; not measured"},
    {256, true, kSmall, 4, 32, 32, 2, 2, 2, 1, 1, "as in 99 KB; not measured"},
};
inline constexpr int kKernelRows = static_cast<int>(sizeof(kKernels) / sizeof(kKernels[0]));
inline constexpr std::int64_t kMaxColumns = 256;

// The row of the table for head dimensions up to `columns`, or -1.
constexpr int tile_row(std::int64_t columns, bool score_mod, std::int64_t shared_bytes) {
  for (int row = 0; row < kKernelRows; ++row) {
    const TileRow& tile = kKernels[row];
    if (tile.columns >= columns && tile.score_mod == score_mod && tile.shared_bytes <= shared_bytes)
      return row;
  }
  return -1;
}

}  // namespace tilewise::cuda::backward::sm80
