// The compiled decode kernels. Each row is compiled for bf16 and for fp16; CMakeLists.txt generates
// a source file for every few rows.
#pragma once

#include <cstdint>

#include "cuda/decode/kernel_config.h"

namespace tilewise::cuda::decode {

struct TileRow {
  int columns;
  int row_warps;
  int keys;
  int slots;
  int shared_bytes;  // that a block may use, at least
  int blocks;
  const char* reason;

  TILEWISE_INLINE constexpr KernelConfig config(bool fp16) const {
    return {fp16, columns, row_warps, keys, slots, blocks};
  }
};

inline constexpr int kHalf = 113 * 1024;  // of a multiprocessor of compute capability 9.0 and 10.0
inline constexpr int kSmall = 99 * 1024;  // 8.6, 8.9, 12.0

// The first row that fits a problem is used.
inline constexpr TileRow kKernels[] = {
    {64, 1, 32, 6, kSmall, 2, "not measured yet, by itself or beside another row"},
    {64, 4, 64, 6, kSmall, 2, "not measured"},
    {128, 1, 16, 5, kSmall, 2, "not measured yet, by itself or beside another row"},
    {128, 4, 64, 5, kSmall, 2, "not measured"},
    {256, 1, 16, 3, kHalf, 2, "not measured yet, by itself or beside another row"},
    {256, 1, 16, 2, kSmall, 2, "not measured"},
    {256, 4, 32, 4, kSmall, 2, "not measured yet, by itself or beside another row"},
};
inline constexpr int kKernelRows = static_cast<int>(sizeof(kKernels) / sizeof(kKernels[0]));
inline constexpr std::int64_t kMaxColumns = 256;

// The row of the table for head dimensions up to `columns` and `rows` rows of queries for each kv
// head, or -1.
constexpr int tile_row(std::int64_t columns, std::int64_t rows, std::int64_t shared_bytes) {
  for (int row = 0; row < kKernelRows; ++row) {
    const TileRow& tile = kKernels[row];
    const bool has_rows = tile.row_warps == kWarps || rows <= tile.config(false).rows();
    if (tile.columns >= columns && has_rows && tile.shared_bytes <= shared_bytes) return row;
  }
  return -1;
}

}  // namespace tilewise::cuda::decode
