// The rows and columns of a product that a thread has, chosen without bank conflicts. The functions
// run on host and device.
//
// The lanes of a warp are a grid of 4 rows and 8 columns. Bit 0 of a lane's number counts rows and
// bits 1 to 3 count columns: neighbours 1 apart load the same columns, neighbours 2 apart the same
// rows. Half a warp then loads 16 bytes from 2 rows, or from 8 columns, which are all 32 banks
// once. Operands are loaded 16 bytes at a time, and lie in two ways:
//
//   along the summed dimension   A thread has the rows lane_row + 4 i of its warp, and the columns
//                                across + 16 j of the block: adjacent rows of the tile, which begin
//                                4 banks apart (P and dS: 8)
//   along rows and columns       A thread has runs of 4: lane_row * 4 + 16 i, lane_column * 4 + 32
//   m
//
// Tiles of K and V store key j in row key_row(j) (cuda/fp32/layout.h), so that a thread's keys
// across + 16 j are adjacent in the sequence. Columns of P and dS and rows of dK and dV have that
// order, too.
#pragma once

#include "cuda/backward/fp32/kernel_table.h"

namespace tilewise::cuda::backward::fp32 {

TILEWISE_INLINE constexpr int lane_row(int lane) { return lane % 2 + lane / 16 * 2; }
TILEWISE_INLINE constexpr int lane_column(int lane) { return lane / 2 % kLaneColumns; }

// The part of a thread in a product C (rows, columns) of kWarps warps, kRowWarps along the rows.
template <int kBlockRows, int kBlockColumns, int kWarps, int kRowWarps>
struct ThreadTile {
  static constexpr int kColumnWarps = kWarps / kRowWarps;
  static constexpr int kWarpRows = kBlockRows / kRowWarps;
  static constexpr int kWarpColumns = kBlockColumns / kColumnWarps;
  static constexpr int kRows = kWarpRows / kLaneRows;  // of the thread
  static constexpr int kColumns = kWarpColumns / kLaneColumns;
  static constexpr int kRowRuns = kRows / kVector;
  static constexpr int kColumnRuns = kColumns / kVector;
  static_assert(kRows * kLaneRows * kRowWarps == kBlockRows &&
                    kColumns * kLaneColumns * kColumnWarps == kBlockColumns,
                "The threads share all of the product.");

  TILEWISE_INLINE static constexpr int warp_row(int thread) {
    return thread / 32 / kColumnWarps * kWarpRows;
  }
  TILEWISE_INLINE static constexpr int warp_column(int thread) {
    return thread / 32 % kColumnWarps * kWarpColumns;
  }

  // Along the summed dimension: row i of the thread, and its place across the block.
  TILEWISE_INLINE static constexpr int row(int thread, int i) {
    return warp_row(thread) + lane_row(thread % 32) + kLaneRows * i;
  }
  TILEWISE_INLINE static constexpr int across(int thread) {
    return thread / 32 % kColumnWarps * kLaneColumns + lane_column(thread % 32);
  }

  // Along rows and columns: the first one of run i.
  TILEWISE_INLINE static constexpr int row_run(int thread, int i) {
    return warp_row(thread) + (lane_row(thread % 32) + kLaneRows * i) * kVector;
  }
  TILEWISE_INLINE static constexpr int column_run(int thread, int m) {
    return warp_column(thread) + (lane_column(thread % 32) + kLaneColumns * m) * kVector;
  }
};

// The products of a kernel.
template <KernelConfig kConfig>
using ScoreTile =
    ThreadTile<kConfig.q_tile, kConfig.k_tile, kConfig.warps, kConfig.score_row_warps()>;
template <KernelConfig kConfig>
using KeyGradient =
    ThreadTile<kConfig.k_tile, kConfig.columns, kConfig.warps, kConfig.gradient_row_warps>;

// dQ of a tile of queries is computed in parts of at most 128 columns, which take fewer registers.
template <KernelConfig kConfig>
inline constexpr int kQueryParts = kConfig.columns > 128 ? kConfig.columns / 128 : 1;
template <KernelConfig kConfig>
using QueryGradient = ThreadTile<kConfig.q_tile, kConfig.columns / kQueryParts<kConfig>,
                                 kConfig.warps, kConfig.query_row_warps>;

// The layout of a thread's scores for score mods (cuda/tile/score_mod.cuh): register
// r = row * kKeys + key.
template <int kThreadRows, int kKeys>
struct ScoreLayout {
  static constexpr int kRows = kThreadRows;
  TILEWISE_INLINE static constexpr int row(int r) { return r / kKeys; }
  TILEWISE_INLINE static constexpr int row_offset(int r) { return r / kKeys * kLaneRows; }
  TILEWISE_INLINE static constexpr int column(int r) { return r % kKeys; }
  TILEWISE_INLINE static constexpr int bit(int r) { return r % kKeys; }
};

}  // namespace tilewise::cuda::backward::fp32
