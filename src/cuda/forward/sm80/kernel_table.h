// The compiled forward kernels for Ampere and later. Each row is compiled for bf16 and for fp16;
// CMakeLists.txt generates a source file for every few rows.
#pragma once

#include "cuda/sm80/kernel_config.h"

namespace tilewise::cuda::sm80 {

// Why these shapes. A thread's registers hold out (row_blocks * columns / 2 / pair_size()),
// scores (row_blocks * k_tile / 2 / pair_size()) and half as many probs.
// A multiprocessor holds one block of eight warps, and idles while that block begins and ends. Two
// blocks of four warps are faster for short sequences, where blocks begin and end often.
inline constexpr int kLongKeys = 2049;

// The first row that fits a problem is used. The reasons give TFLOP/s on one H200 (full attention,
// S 16384), of each kernel alone; where they name pairs, of kernels that ran in alternation.
inline constexpr TileRow kKernels[] = {
    {64, false, kSmall, 4, 2, 80, 2, true, 2, "327; 64 keys 310, Q read again 302, 16 rows 272",
     kLongKeys},
    {64, false, kSmall, 4, 2, 64, 2, true, 2,
     "up to 2048 keys; S 1024: 296, causal 208; 80 keys 290, 201"},
    {64, true, kSmall, 4, 2, 64, 2, true, 2,
     "score mods take the registers of 80 keys; not measured"},
    {128, false, kSmall, 4, 2, 64, 1, false, 2, "375; 48 keys 359, 8 warps 349, 16 rows 311"},
    {128, true, kSmall, 4, 1, 64, 1, false, 2,
     "score mods take the registers of 32 rows; not measured"},
    {192, false, kLarge, 8, 1, 96, 1, false, 1, "as 256; not measured by itself", kLongKeys},
    {192, false, kSmall, 4, 1, 64, 1, false, 2, "as 256; not measured by itself"},
    {256, false, kHuge, 8, 2, 96, 1, false, 1, "pairs: 360; 128 x 64 336, 64 x 64 344, without 324",
     kLongKeys, true},
    {256, false, kLarge, 8, 2, 64, 1, false, 1, "pairs, 150 KB: 336; without, 96 keys 324",
     kLongKeys, true},
    {256, false, kHuge, 4, 2, 64, 1, false, 2,
     "up to 2048 keys: pairs, 111 KB, twice on a multiprocessor; S 1024: 273, causal 226; without "
     "251, 210",
     0, true},
    {256, false, kSmall, 4, 1, 64, 1, false, 2,
     "314; 97 KB: twice on a multiprocessor for short sequences; 32 keys 4 % slower there"},
    {192, true, kSmall, 4, 1, 64, 1, false, 2, "as 256 in 99 KB; not measured"},
    {256, true, kSmall, 4, 1, 64, 1, false, 2, "as 256 in 99 KB; not measured"},
};
inline constexpr int kKernelRows = static_cast<int>(sizeof(kKernels) / sizeof(kKernels[0]));
inline constexpr std::int64_t kMaxColumns = 256;

// The row of the table for head dimensions up to `columns` and sequences of up to `keys`, or -1.
constexpr int tile_row(std::int64_t columns, bool score_mod, std::int64_t shared_bytes,
                       std::int64_t keys) {
  for (int row = 0; row < kKernelRows; ++row) {
    const TileRow& tile = kKernels[row];
    if (tile.columns >= columns && tile.score_mod == score_mod &&
        tile.shared_bytes <= shared_bytes && tile.least_keys <= keys)
      return row;
  }
  return -1;
}

}  // namespace tilewise::cuda::sm80
