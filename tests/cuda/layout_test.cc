// Lane maps and swizzles: every element of a tile has exactly one place.
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "cuda/tile/fragment.h"
#include "cuda/tile/swizzle.h"

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

// The four registers of a (64, 16) operand, as PTX ISA draws them: two columns of row l / 4, the
// same of row l / 4 + 8, then columns 8 further. Packing registers 8 s .. 8 s + 7 of a result in
// pairs must give columns 16 s .. 16 s + 15.
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

TEST(Swizzle, IsABijectionOfEachEightRows) {
  std::set<std::int32_t> seen;
  for (std::int32_t row = 0; row < 2 * kSwizzleRows; ++row) {
    for (std::int32_t byte = 0; byte < kPanelRowBytes; ++byte) {
      const std::int32_t place = swizzled(row, byte);
      EXPECT_EQ(place / kSwizzleBytes, row / kSwizzleRows);
      EXPECT_EQ(place % kChunkBytes, byte % kChunkBytes);
      EXPECT_TRUE(seen.insert(place).second) << "row " << row << " byte " << byte;
    }
  }
  EXPECT_EQ(seen.size(), std::size_t{2} * kSwizzleBytes);
}

// A column of chunks, read by eight rows at once, meets every group of banks once.
TEST(Swizzle, SpreadsColumnsOverBanks) {
  for (std::int32_t byte = 0; byte < kPanelRowBytes; byte += kChunkBytes) {
    std::set<std::int32_t> banks;
    for (std::int32_t row = 0; row < kSwizzleRows; ++row) {
      banks.insert(swizzled(row, byte) % kPanelRowBytes / kChunkBytes);
    }
    EXPECT_EQ(banks.size(), 8u);
  }
}

TEST(Swizzle, DescriptorFields) {
  const std::uint64_t descriptor = columns_descriptor(0x12340, 176 * kPanelRowBytes);
  EXPECT_EQ(descriptor & 0x3FFF, 0x1234u);
  EXPECT_EQ(descriptor >> 16 & 0x3FFF, 176u * kPanelRowBytes / 16);
  EXPECT_EQ(descriptor >> 32 & 0x3FFF, 64u);
  EXPECT_EQ(descriptor >> 62, 1u);  // 128 bytes
  EXPECT_EQ(rows_descriptor(0x400) & 0x3FFF, 0x40u);
}

}  // namespace
}  // namespace tilewise::cuda::tile
