// The places of the elements of a warpgroup's tile in its registers. The functions run on host and
// device, so that tests can check them without a GPU.
//
// The result of wgmma has 64 rows and N columns. Warp w of the warpgroup holds rows 16 w to
// 16 w + 15. Of each 8 columns, lane l holds two of row l / 4 and two of row l / 4 + 8:
//
//            columns  0  1 | 2  3 | 4  5 | 6  7 | 8  9 ...
//     row 0           lane 0 | lane 1 | lane 2 | lane 3 |  lane 0 ...      registers 0 1 | 4 5 ...
//     row 1           lane 4 | lane 5 | lane 6 | lane 7 |  lane 4
//     ...
//     row 8           lane 0 | lane 1 | lane 2 | lane 3 |  lane 0 ...      registers 2 3 | 6 7 ...
//
// A (64, 16) operand in registers has the same layout, with two 16-bit numbers in a register, so
// that probs become the left operand of the next product without moving between lanes.
#pragma once

#include "math/config.h"

namespace tilewise::cuda::tile {

inline constexpr int kRows = 64;        // of a warpgroup's tile
inline constexpr int kWarpRows = 16;    // of a warp
inline constexpr int kRowsPerLane = 2;  // l / 4 and l / 4 + 8
inline constexpr int kLanesPerRow = 4;  // a quad shares a row

// The lane's row `which` (0 or 1), among the 16 rows of its warp.
TILEWISE_INLINE constexpr int lane_row(int lane, int which) { return lane / 4 + 8 * which; }

// Register r holds an element of the lane's row register_row(r), at column register_column(r) +
// lane_column(lane).
TILEWISE_INLINE constexpr int register_row(int r) { return r / 2 % 2; }
TILEWISE_INLINE constexpr int register_column(int r) { return r / 4 * 8 + r % 2; }
TILEWISE_INLINE constexpr int lane_column(int lane) { return lane % 4 * 2; }

}  // namespace tilewise::cuda::tile
