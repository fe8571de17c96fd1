// Fragments of a warpgroup: which rows and columns the registers of a lane hold.
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "cuda/tile/fragment.h"

namespace tilewise::cuda::tile {
namespace {

TEST(Fragment, EveryElementIsInOneRegister) {
  constexpr int kColumns = 176;
  std::set<std::pair<int, int>> seen;
  for (int warp = 0; warp < kRows / kWarpRows; ++warp) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int r = 0; r < kColumns / 2; ++r) {
        const int row = warp * kWarpRows + lane_row(lane, register_row(r));
        const int column = lane_column(lane) + register_column(r);
        ASSERT_LT(row, kRows);
        ASSERT_LT(column, kColumns);
        EXPECT_TRUE(seen.emplace(row, column).second) << "row " << row << " column " << column;
      }
    }
  }
  EXPECT_EQ(seen.size(), std::size_t{kRows} * kColumns);
}

// The four registers of a (64, 16) operand in the PTX ISA hold two columns of row l / 4, the same
// columns of row l / 4 + 8, then columns that are 8 further. Packing registers 8 s .. 8 s + 7 of a
// result in pairs must give columns 16 s .. 16 s + 15.
TEST(Fragment, PairsOfResultsAreOperands) {
  for (int step = 0; step < 4; ++step) {
    for (int operand = 0; operand < 4; ++operand) {
      const int r = 8 * step + 2 * operand;
      EXPECT_EQ(register_row(r), operand % 2);
      EXPECT_EQ(register_row(r + 1), operand % 2);
      EXPECT_EQ(register_column(r), 16 * step + operand / 2 * 8);
      EXPECT_EQ(register_column(r + 1), register_column(r) + 1);
    }
  }
}

TEST(Fragment, FourLanesShareARow) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int which = 0; which < kRowsPerLane; ++which) {
      EXPECT_EQ(lane_row(lane, which), lane_row(lane / kLanesPerRow * kLanesPerRow, which));
    }
  }
}

}  // namespace
}  // namespace tilewise::cuda::tile
