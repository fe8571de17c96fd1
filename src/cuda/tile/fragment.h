// Where the elements of a warpgroup's tile lie in its registers. Plain functions of host and
// device, so that a test can look at them without a GPU.
//
// The result of wgmma (64 rows, N columns): warp w of the warpgroup has rows 16 w to 16 w + 15.
// Lane l has, of each 8 columns, two of row l / 4 and two of row l / 4 + 8:
//
//            columns  0  1 | 2  3 | 4  5 | 6  7 | 8  9 ...
//     row 0           lane 0 | lane 1 | lane 2 | lane 3 |  lane 0 ...      registers 0 1 | 4 5 ...
//     row 1           lane 4 | lane 5 | lane 6 | lane 7 |  lane 4
//     ...
//     row 8           lane 0 | lane 1 | lane 2 | lane 3 |  lane 0 ...      registers 2 3 | 6 7 ...
//
// A (64, 16) operand in registers has the same map, two 16-bit numbers to a register: probabilities
// become the left operand of the next product without moving between lanes.
#pragma once

#include "math/config.h"

namespace tilewise::cuda::tile {

inline constexpr int kRows = 64;        // of a warpgroup's tile
inline constexpr int kWarpRows = 16;    // of a warp's part
inline constexpr int kRowsPerLane = 2;  // l / 4 and l / 4 + 8
inline constexpr int kLanesPerRow = 4;  // the quad that shares a row

// Row of the warp's part, for the lane's row number 0 or 1.
TILEWISE_INLINE constexpr int lane_row(int lane, int which) { return lane / 4 + 8 * which; }

// Of register r: which of the lane's two rows, and the column.
TILEWISE_INLINE constexpr int register_row(int r) { return r / 2 % 2; }
TILEWISE_INLINE constexpr int register_column(int r) { return r / 4 * 8 + r % 2; }  // of lane 0
TILEWISE_INLINE constexpr int lane_column(int lane) { return lane % 4 * 2; }        // added to it

}  // namespace tilewise::cuda::tile
