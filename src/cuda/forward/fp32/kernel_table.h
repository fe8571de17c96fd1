// The compiled fp32 kernels: their configurations, and the table that selects one.
#pragma once

#include "cuda/fp32/layout.h"
#include "math/config.h"

namespace tilewise::cuda::fp32 {

inline constexpr int kWarpRows = 16;    // of queries
inline constexpr int kThreadRows = 8;   // of them in a thread's registers
inline constexpr int kMaxSumKeys = 32;  // whose products are summed before out adds them (gemm.cuh)

struct KernelConfig {
  bool score_mod;  // scores need more than a positive scale, or probs are dropped
  int columns;     // D and Dv are padded to it
  int warps;       // of a block
  int k_tile;      // keys at a time
  int chunk;       // keys whose probs a warp exchanges at once
  int blocks;      // on a multiprocessor

  TILEWISE_INLINE constexpr int threads() const { return 32 * warps; }
  TILEWISE_INLINE constexpr int q_tile() const { return kWarpRows * warps; }
  TILEWISE_INLINE constexpr int thread_keys() const { return k_tile / kAcross; }
  TILEWISE_INLINE constexpr int thread_columns() const { return columns / kAcross; }
  TILEWISE_INLINE constexpr int sum_keys() const {
    return chunk < kMaxSumKeys ? chunk : kMaxSumKeys;
  }
  // Runs of 4 columns whose sums of sum_keys() keys a thread holds at a time. Fewer runs need more
  // loads of probs.
  TILEWISE_INLINE constexpr int sum_runs() const { return columns == 128 && !score_mod ? 2 : 1; }
  TILEWISE_INLINE constexpr int row() const { return columns + kPad; }      // of Q and K
  TILEWISE_INLINE constexpr int chunk_row() const { return chunk + kPad; }  // of probs
};

// Why these shapes. A thread multiplies 8 rows with n = thread_keys() keys, then 8 rows with
// n = thread_columns() columns of V. Four steps of a product need 8 + n loads of 16 bytes for 32 n
// multiply-adds: 12 loads for 128 with n = 4, 16 for 256 with n = 8. The registers of a thread hold
// 8 thread_columns() of out, 8 thread_keys() scores, 32 of an operand and 32 sum_runs() sums of
// products. At 256 columns they hold the sums of 4 columns of V at a time (n = 4). Where all probs
// of a tile are exchanged at once, its scores leave their registers to the sums.
struct TileRow {
  int columns;
  bool score_mod;
  int shared_bytes;  // that a block may use, at least
  int warps;
  int k_tile;
  int chunk;
  int blocks;
  const char* reason;

  TILEWISE_INLINE constexpr KernelConfig config() const {
    return {score_mod, columns, warps, k_tile, chunk, blocks};
  }
};

inline constexpr int kHuge = 227 * 1024;   // compute capability 9.0, 10.0
inline constexpr int kLarge = 163 * 1024;  // 8.0, 8.7
inline constexpr int kSmall = 99 * 1024;   // 8.6, 8.9, 12.0

// The first row that fits a problem is used. The reasons give TFLOP/s on one H200 (full attention,
// S 16384), measured before products were summed apart from out.
inline constexpr TileRow kKernels[] = {
    {64, false, kLarge, 12, 64, 64, 1, "34.7; three warps a scheduler have 168 registers"},
    {64, false, kSmall, 8, 64, 32, 1, "what fits 99 KB; not measured"},
    {64, true, kSmall, 8, 64, 32, 1, "score mods take the registers of a third warp; not measured"},
    {128, false, kLarge, 8, 64, 32, 1, "39.4; two warps a scheduler; 64 keys: 151 KB"},
    {128, false, kSmall, 4, 32, 32, 1, "what fits 99 KB; not measured"},
    {128, true, kLarge, 8, 64, 32, 1, "as without score mods; not measured"},
    {128, true, kSmall, 4, 32, 32, 1, "what fits 99 KB; not measured"},
    {256, false, kHuge, 4, 64, 64, 1, "31.0; 211 KB; 32 keys would be 10 loads for 64"},
    {256, false, kLarge, 4, 32, 32, 1, "what fits 163 KB; not measured"},
    {256, false, kSmall, 2, 16, 16, 1, "what fits 99 KB; not measured"},
    {256, true, kLarge, 4, 32, 32, 1, "what fits 163 KB; not measured"},
    {256, true, kSmall, 2, 16, 16, 1, "what fits 99 KB; not measured"},
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

}  // namespace tilewise::cuda::fp32
