// The compiled decode kernels. Each row is compiled for bf16 and for fp16, for e4m3 and for e5m2,
// or for fp32; CMakeLists.txt generates a source file for every few rows.
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
  bool at_phi = false;

  TILEWISE_INLINE constexpr KernelConfig config(bool fp16) const {
    return {fp16, columns, row_warps, keys, slots, blocks, at_phi, false, false, false};
  }
  TILEWISE_INLINE constexpr KernelConfig fp8_config(bool e5m2) const {
    return {true, columns, row_warps, keys, slots, blocks, false, true, e5m2, false};
  }
  TILEWISE_INLINE constexpr KernelConfig fp32_config() const {
    return {false, columns, row_warps, keys, slots, blocks, false, false, false, true};
  }
};

inline constexpr int kSmall = 99 * 1024;  // 8.6, 8.9, 12.0

// The first row that fits a problem is used.
inline constexpr TileRow kKernels[] = {
    {64, 1, 32, 6, kSmall, 2, "16 rows; 20 KB of K and V in flight for each of four groups"},
    {64, 2, 64, 5, kSmall, 2, "32 rows: every warp has rows, and two share a tile of keys"},
    {64, 4, 64, 6, kSmall, 2, "64 rows: all warps share a tile of keys; 40 KB in flight"},
    {128, 1, 16, 5, kSmall, 2, "16 rows; 16 KB of K and V in flight for each of four groups"},
    {128, 2, 32, 5, kSmall, 2, "32 rows: every warp has rows, and two share a tile of keys"},
    {128, 4, 64, 5, kSmall, 2, "64 rows: all warps share a tile of keys; 64 KB in flight"},
    {256, 2, 16, 4, kSmall, 2, "up to 32 rows: for 16, four groups spilled registers"},
    {256, 4, 16, 8, kSmall, 2, "64 rows: 32 keys take registers that 256 columns of out need"},
    // NOTE: kernels of their own. With phi as an option of those above, these took 1 to 2 us
    // longer, and ptxas spilled registers for 256 columns.
    {64, 1, 32, 6, kSmall, 2, "16 rows at phi", true},
    {64, 2, 64, 5, kSmall, 2, "32 rows at phi", true},
    {64, 4, 64, 6, kSmall, 2, "64 rows at phi", true},
    {128, 1, 16, 5, kSmall, 2, "16 rows at phi", true},
    {128, 2, 32, 5, kSmall, 2, "32 rows at phi", true},
    {128, 4, 64, 5, kSmall, 2, "64 rows at phi", true},
};
inline constexpr int kKernelRows = static_cast<int>(sizeof(kKernels) / sizeof(kKernels[0]));

// The kernels for K and V of fp8. About as many bytes as above are in flight, of twice the keys:
// Q has two parts of 16 bits, and the rows of out of all groups must fit the ring.
inline constexpr TileRow kFp8Kernels[] = {
    {64, 1, 32, 10, kSmall, 2, "a lane looks up one row of a tile, so that it has 32 keys"},
    {64, 2, 64, 9, kSmall, 2, "32 rows"},
    {64, 4, 64, 12, kSmall, 2, "64 rows"},
    {128, 1, 32, 5, kSmall, 2, "16 rows; 16 KB of K and V in flight for each of four groups"},
    {128, 2, 64, 5, kSmall, 2, "32 rows"},
    {128, 4, 64, 8, kSmall, 2, "64 rows"},
    {256, 2, 16, 8, kSmall, 2, "for 64 rows, Q and their out would leave no ring"},
};
inline constexpr int kFp8KernelRows =
    static_cast<int>(sizeof(kFp8Kernels) / sizeof(kFp8Kernels[0]));

// The kernels for fp32. They were chosen by the bytes in flight and by the registers that ptxas
// needs, and are not timed yet. Each thread copies 16 bytes of a row, so that 256 columns would
// need two warps for each.
inline constexpr TileRow kFp32Kernels[] = {
    {64, 1, 16, 5, kSmall, 2, "16 rows; 16 KB of K and V in flight for each of four groups"},
    {64, 4, 32, 8, kSmall, 2, "64 rows: all warps share a tile of keys; 56 KB in flight"},
    {128, 1, 16, 2, kSmall, 2, "16 rows; 8 KB in flight for each of four groups, of two blocks"},
    {128, 4, 16, 6, kSmall, 2, "64 rows: all warps share a tile of keys; 40 KB in flight"},
};
inline constexpr int kFp32KernelRows =
    static_cast<int>(sizeof(kFp32Kernels) / sizeof(kFp32Kernels[0]));

// D and Dv are at most that.
constexpr std::int64_t most_columns(bool fp32) { return fp32 ? 128 : 256; }

// The row of a table for head dimensions up to `columns` and `rows` rows of queries for each kv
// head, or -1. The last row of a number of columns takes any number of rows.
template <int kCount>
constexpr int tile_row(const TileRow (&table)[kCount], std::int64_t columns, std::int64_t rows,
                       std::int64_t shared_bytes, bool at_phi) {
  for (int row = 0; row < kCount; ++row) {
    const TileRow& tile = table[row];
    const bool is_last = row + 1 == kCount || table[row + 1].columns != tile.columns;
    const bool has_rows = is_last || rows <= tile.config(false).rows();
    if (tile.at_phi == at_phi && tile.columns >= columns && has_rows &&
        tile.shared_bytes <= shared_bytes)
      return row;
  }
  return -1;
}

}  // namespace tilewise::cuda::decode
