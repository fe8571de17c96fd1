// The swizzle of TMA and wgmma, and the matrix descriptors of wgmma.
#include <gtest/gtest.h>

#include <set>

#include "cuda/tile/swizzle.h"

namespace tilewise::cuda::tile {
namespace {

TEST(Swizzle, IsABijectionOfEachEightRows) {
  std::set<std::int32_t> seen;
  for (std::int32_t row = 0; row < 2 * kSwizzleRows; ++row) {
    for (std::int32_t byte = 0; byte < kPanelRowBytes; ++byte) {
      const std::int32_t offset = swizzled(row, byte);
      EXPECT_EQ(offset / kSwizzleBytes, row / kSwizzleRows);
      EXPECT_EQ(offset % kChunkBytes, byte % kChunkBytes);
      EXPECT_TRUE(seen.insert(offset).second) << "row " << row << " byte " << byte;
    }
  }
  EXPECT_EQ(seen.size(), std::size_t{2} * kSwizzleBytes);
}

// A read of one chunk of each of eight rows uses every group of banks once.
TEST(Swizzle, SpreadsColumnsOverBanks) {
  for (std::int32_t byte = 0; byte < kPanelRowBytes; byte += kChunkBytes) {
    std::set<std::int32_t> banks;
    for (std::int32_t row = 0; row < kSwizzleRows; ++row) {
      banks.insert(swizzled(row, byte) % kPanelRowBytes / kChunkBytes);
    }
    EXPECT_EQ(banks.size(), 8u);
  }
}

TEST(Swizzle, DescriptorsHaveTheFieldsOfThePtxIsa) {
  const std::uint64_t descriptor = columns_descriptor(0x12340, 176 * kPanelRowBytes);
  EXPECT_EQ(descriptor & 0x3FFF, 0x1234u);
  EXPECT_EQ(descriptor >> 16 & 0x3FFF, 176u * kPanelRowBytes / 16);
  EXPECT_EQ(descriptor >> 32 & 0x3FFF, 64u);
  EXPECT_EQ(descriptor >> 62, 1u);  // 128 bytes
  EXPECT_EQ(rows_descriptor(0x400) & 0x3FFF, 0x40u);
}

}  // namespace
}  // namespace tilewise::cuda::tile
