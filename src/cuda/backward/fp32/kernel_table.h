// The compiled fp32 backward kernels: their configurations, and the table that selects one.
#pragma once

#include "cuda/fp32/layout.h"
#include "math/config.h"

namespace tilewise::cuda::backward::fp32 {

using cuda::fp32::kAcross;
using cuda::fp32::kPad;
using cuda::fp32::kVector;

inline constexpr int kLaneRows = 4;     // lanes of a warp, along the rows of a product
inline constexpr int kLaneColumns = 8;  // and along its columns
inline constexpr int kScorePad = 8;     // floats after each row of P and dS in shared memory

// The warps of a block share each product as a grid. *_row_warps is the number of its rows; the
// other warps share its columns. S and dP (q_tile, k_tile) have two warps, 16 threads, side by
// side.
struct KernelConfig {
  int columns;             // D and Dv are padded to it
  int warps;               // of a block
  int q_tile;              // queries at a time
  int k_tile;              // keys of a block
  int gradient_row_warps;  // dK and dV (k_tile, columns)
  int query_row_warps;     // dQ (q_tile, columns)
  int blocks;              // on a multiprocessor

  TILEWISE_INLINE constexpr int threads() const { return 32 * warps; }
  TILEWISE_INLINE constexpr int score_row_warps() const { return warps * kLaneColumns / kAcross; }
  TILEWISE_INLINE constexpr int thread_keys() const { return k_tile / kAcross; }
  TILEWISE_INLINE constexpr int row() const { return columns + kPad; }  // of Q, K, V and dO
  TILEWISE_INLINE constexpr int score_row() const { return k_tile + kScorePad; }
};

// A row of the table of kernels.
struct TileRow {
  int columns;
  int shared_bytes;  // that a block may use, at least
  int warps;
  int q_tile;
  int k_tile;
  int gradient_row_warps;
  int query_row_warps;
  int blocks;
  const char* reason;

  TILEWISE_INLINE constexpr KernelConfig config() const {
    return {columns, warps, q_tile, k_tile, gradient_row_warps, query_row_warps, blocks};
  }
};

inline constexpr int kHuge = 227 * 1024;   // compute capability 9.0, 10.0
inline constexpr int kLarge = 163 * 1024;  // 8.0, 8.7
inline constexpr int kSmall = 99 * 1024;   // 8.6, 8.9, 12.0

// A thread has r rows and c columns of a product: four steps of the summed dimension take r + c
// loads of 16 bytes for 4 r c multiply-adds. The reasons of the rows give r x c of S and dP, then
// of dV and dK. No row has been timed yet. Score mods and dropout are branches at run time: a
// thread has at most 32 scores, so that registers are left for them.
//
// dQ is added to fp32 sums in memory, as in cuda_sm80. A second pass over tiles of queries would
// compute S and dP again: 7 products instead of 5. At D 64 a product takes 2048 multiply-adds of a
// thread for a tile, and the additions to memory 32 instructions.
inline constexpr TileRow kKernels[] = {
    {64, kSmall, 4, 64, 64, 2, 2, 2, "8 x 4, 8 x 4; 88 KB, two blocks in 227 KB; not timed yet"},
    {128, kLarge, 8, 64, 64, 2, 2, 1, "4 x 4, 8 x 4; 152 KB; not timed yet"},
    {128, kSmall, 4, 32, 32, 1, 1, 1, "4 x 2, 8 x 4; what fits 99 KB; not timed yet"},
    {256, kHuge, 8, 64, 32, 1, 2, 1, "4 x 2, 8 x 4; 207 KB; not timed yet"},
    {256, kLarge, 4, 32, 32, 1, 1, 1, "4 x 2, 8 x 8; 137 KB; not timed yet"},
    {256, kSmall, 2, 16, 16, 1, 1, 1, "4 x 1, 4 x 16; what fits 99 KB; not timed yet"},
};
inline constexpr int kKernelRows = static_cast<int>(sizeof(kKernels) / sizeof(kKernels[0]));
inline constexpr std::int64_t kMaxColumns = 256;

// The row of the table for head dimensions up to `columns`, or -1.
constexpr int tile_row(std::int64_t columns, std::int64_t shared_bytes) {
  for (int row = 0; row < kKernelRows; ++row) {
    const TileRow& tile = kKernels[row];
    if (tile.columns >= columns && tile.shared_bytes <= shared_bytes) return row;
  }
  return -1;
}

}  // namespace tilewise::cuda::backward::fp32
