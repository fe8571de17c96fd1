// The shapes of the kernels of every GPU since Ampere: one constexpr value for each kernel, and the
// table that chooses.
#pragma once

#include "math/config.h"

namespace tilewise::cuda::sm80 {

struct KernelConfig {
  bool fp16;         // else bf16
  bool general;      // scores need more than a positive scale, or weights are dropped
  int columns;       // D and Dv are padded to it
  int warps;         // of a block
  int row_parts;     // of 16 rows of Q for each warp
  int k_tile;        // keys in a stage
  int stages;        // 1: K and V take turns; 2: the next tile of both comes meanwhile
  bool q_registers;  // Q stays in registers; else it is read again for each tile of keys
  // Two warps have the same rows: of the scores half of the keys each, of out half of the columns.
  // An operand from shared memory then serves twice as many rows.
  bool paired;
  int blocks;  // on a multiprocessor

  TILEWISE_INLINE constexpr int threads() const { return 32 * warps; }
  TILEWISE_INLINE constexpr int column_parts() const { return paired ? 2 : 1; }
  TILEWISE_INLINE constexpr int q_tile() const { return 16 * row_parts * warps / column_parts(); }
  TILEWISE_INLINE constexpr int q_bytes() const { return q_tile() * columns * 2; }
  TILEWISE_INLINE constexpr int k_bytes() const { return k_tile * columns * 2; }
};

// A configuration as a number: the name that nvcc 13 gives to a kernel whose template parameter is
// a struct does not compile.
TILEWISE_INLINE constexpr std::uint32_t encode(const KernelConfig& config) {
  return static_cast<std::uint32_t>(
      (config.fp16 ? 1 : 0) | (config.general ? 2 : 0) | (config.q_registers ? 4 : 0) |
      config.stages << 3 | config.blocks << 5 | config.row_parts << 8 | config.warps << 10 |
      config.columns / 32 << 14 | config.k_tile / 16 << 18 | (config.paired ? 1 << 22 : 0));
}
TILEWISE_INLINE constexpr KernelConfig decode(std::uint32_t code) {
  return {(code & 1) != 0,
          (code & 2) != 0,
          static_cast<int>(code >> 14 & 15) * 32,
          static_cast<int>(code >> 10 & 15),
          static_cast<int>(code >> 8 & 3),
          static_cast<int>(code >> 18 & 15) * 16,
          static_cast<int>(code >> 3 & 3),
          (code & 4) != 0,
          (code >> 22 & 1) != 0,
          static_cast<int>(code >> 5 & 7)};
}

// Why these shapes. A thread's registers hold out (row_parts * columns / 2 / column_parts()),
// scores (row_parts * k_tile / 2 / column_parts()) and half as many weights.
struct TileRow {
  int columns;
  bool general;
  int shared_bytes;  // that a block may use, at least
  int warps;
  int row_parts;
  int k_tile;
  int stages;
  bool q_registers;
  int blocks;
  const char* reason;
  int least_keys = 0;  // of a sequence
  bool paired = false;

  TILEWISE_INLINE constexpr KernelConfig config(bool fp16) const {
    return {fp16, general, columns, warps, row_parts, k_tile, stages, q_registers, paired, blocks};
  }
};

inline constexpr int kHuge = 227 * 1024;   // 9.0, 10.0
inline constexpr int kLarge = 163 * 1024;  // compute capability 8.0, 8.7, 9.0 and later
inline constexpr int kSmall = 99 * 1024;   // 8.6, 8.9, 12.0

// Of a block of eight warps there is one on a multiprocessor, and nothing else while it begins and
// ends: two of four warps are faster where it does so often.
inline constexpr int kLong = 2049;

// The first row that fits serves. The rows of a file (forward_*.cu) follow each other. Figures:
// TFLOP/s on one H200, full, S 16384, each kernel alone; where pairs are named, kernels in turns.
inline constexpr TileRow kTiles[] = {
    {64, false, kSmall, 4, 2, 80, 2, true, 2, "327; 64 keys 310, Q read again 302, 16 rows 272",
     kLong},
    {64, false, kSmall, 4, 2, 64, 2, true, 2,
     "up to 2048 keys; S 1024: 296, causal 208; 80 keys 290, 201"},
    {64, true, kSmall, 4, 2, 64, 2, true, 2, "the rules take registers of 80 keys; not measured"},
    {128, false, kSmall, 4, 2, 64, 1, false, 2, "375; 48 keys 359, 8 warps 349, 16 rows 311"},
    {128, true, kSmall, 4, 1, 64, 1, false, 2, "the rules take registers of 32 rows; not measured"},
    {192, false, kLarge, 8, 1, 96, 1, false, 1, "as 256; not measured by itself", kLong},
    {192, false, kSmall, 4, 1, 64, 1, false, 2, "as 256; not measured by itself"},
    {256, false, kHuge, 8, 2, 96, 1, false, 1, "pairs: 360; 128 x 64 336, 64 x 64 344, without 324",
     kLong, true},
    {256, false, kLarge, 8, 2, 64, 1, false, 1, "pairs, 150 KB: 336; without, 96 keys 324", kLong,
     true},
    {256, false, kHuge, 4, 2, 64, 1, false, 2,
     "up to 2048 keys: pairs, 111 KB, twice on a multiprocessor; S 1024: 273, causal 226; without "
     "251, 210",
     0, true},
    {256, false, kSmall, 4, 1, 64, 1, false, 2,
     "314; 97 KB: twice on a multiprocessor for short sequences; 32 keys 4 % slower there"},
    {192, true, kSmall, 4, 1, 64, 1, false, 2, "as 256 in 99 KB; not measured"},
    {256, true, kSmall, 4, 1, 64, 1, false, 2, "as 256 in 99 KB; not measured"},
};
inline constexpr int kTileRows = static_cast<int>(sizeof(kTiles) / sizeof(kTiles[0]));
inline constexpr std::int64_t kMostColumns = 256;

// The row of the table for head dimensions up to `columns` and sequences of up to `keys`; -1: none.
constexpr int tile_row(std::int64_t columns, bool general, std::int64_t shared_bytes,
                       std::int64_t keys) {
  for (int row = 0; row < kTileRows; ++row) {
    const TileRow& tile = kTiles[row];
    if (tile.columns >= columns && tile.general == general && tile.shared_bytes <= shared_bytes &&
        tile.least_keys <= keys)
      return row;
  }
  return -1;
}

}  // namespace tilewise::cuda::sm80
