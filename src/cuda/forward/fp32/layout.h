// Which rows, keys and columns a thread of the fp32 kernels has, and how that avoids bank
// conflicts. Plain functions of host and device.
//
// A warp has 16 rows of queries; each half of it has every second row. Lane l has the rows
// l / 16 + 2 i, i = 0 to 7. Of them it computes thread_keys() adjacent keys, then columns of out in
// runs of 4: l % 16 * 4 + 64 m. All keys of a row are in one half of one warp: lanes exchange
// maxima and sums by shuffles, and probs through shared memory that belongs to the warp.
//
// Operands are loaded 16 bytes at a time: 4 steps of the summed dimension for Q, K and the probs,
// 4 columns for V. A quarter of a warp then accesses
//   Q, probs: one row, one address for all lanes
//   K:        keys l % 16 * n + i of 8 lanes. They are n rows apart in the tensor, but the tile
//             stores key j in row j % n * 16 + j / n: 8 adjacent rows of row() = columns + 4 floats
//             each, which begin 4 banks apart and cover all 32 banks once
//   V:        8 adjacent runs: all banks, once
#pragma once

#include "cuda/forward/fp32/kernel_table.h"

namespace tilewise::cuda::fp32 {

TILEWISE_INLINE constexpr int lane_half(int lane) { return lane / kAcross; }
TILEWISE_INLINE constexpr int lane_across(int lane) { return lane % kAcross; }

// Row i of a lane, among the warp's 16.
TILEWISE_INLINE constexpr int lane_row(int lane, int i) { return lane_half(lane) + 2 * i; }

// The first column of run m of a lane's columns of out.
TILEWISE_INLINE constexpr int lane_run(int lane, int m) {
  return lane_across(lane) * kVector + m * kAcross * kVector;
}

// The layout of a lane's scores for score mods (cuda/tile/score_mod.cuh): register
// r = row * kKeys + key.
template <int kKeys>
struct ScoreLayout {
  static constexpr int kRows = kThreadRows;
  TILEWISE_INLINE static constexpr int row(int r) { return r / kKeys; }
  TILEWISE_INLINE static constexpr int row_offset(int r) { return r / kKeys * 2; }
  TILEWISE_INLINE static constexpr int column(int r) { return r % kKeys; }
  TILEWISE_INLINE static constexpr int bit(int r) { return r % kKeys; }
};

}  // namespace tilewise::cuda::fp32
