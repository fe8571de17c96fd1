// What a thread of the fp32 kernels computes, and how that avoids conflicts of banks. Plain
// functions of host and device.
//
// A warp has 16 rows of queries, half a warp every second one of them: lane l has rows l / 16 + 2
// i, i = 0 to 7, and of them thread_keys() keys that follow each other, then columns of out in runs
// of 4: l % 16 * 4 + 64 m. All keys of a row are in one half of one warp: maxima and sums are
// exchanged by shuffles, probs through memory that is the warp's own.
//
// Operands are loaded 16 bytes at a time, 4 steps of the summed dimension for Q, K and the probs,
// 4 columns for V. A quarter of a warp then asks for
//   Q, probs: one row: one address for all
//   K:          keys l % 16 * n + i of 8 lanes. They lie n rows apart in the tensor, but the tile
//               keeps key j at row j % n * 16 + j / n: 8 rows that follow each other, each
//               row() = columns + 4 floats long, so that their banks are 4 apart: all 32, once
//   V:          8 runs that follow each other: all banks, once
#pragma once

#include "cuda/forward/fp32/kernel_table.h"

namespace tilewise::cuda::fp32 {

TILEWISE_INLINE constexpr int lane_half(int lane) { return lane / kAcross; }
TILEWISE_INLINE constexpr int lane_across(int lane) { return lane % kAcross; }

// Row i of a lane, of the warp's 16.
TILEWISE_INLINE constexpr int lane_row(int lane, int i) { return lane_half(lane) + 2 * i; }

// Of run m of a lane's columns of out, the first one.
TILEWISE_INLINE constexpr int lane_run(int lane, int m) {
  return lane_across(lane) * kVector + m * kAcross * kVector;
}

// Where the tile of K keeps key `key`, for n keys a thread; and the key that row `place` keeps.
TILEWISE_INLINE constexpr int key_place(int key, int n) { return key % n * kAcross + key / n; }
TILEWISE_INLINE constexpr int key_at(int place, int n) {
  return place % kAcross * n + place / kAcross;
}

// The lane's scores as the rules read them (cuda/tile/score.cuh): register r = row * kKeys + key.
template <int kKeys>
struct ScoreLayout {
  static constexpr int kRows = kThreadRows;
  TILEWISE_INLINE static constexpr int row(int r) { return r / kKeys; }
  TILEWISE_INLINE static constexpr int row_offset(int r) { return r / kKeys * 2; }
  TILEWISE_INLINE static constexpr int column(int r) { return r % kKeys; }
  TILEWISE_INLINE static constexpr int bit(int r) { return r % kKeys; }
};

}  // namespace tilewise::cuda::fp32
