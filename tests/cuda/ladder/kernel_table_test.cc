// Which rows of the tables of cuda_flash1 and cuda_standard a problem uses.
#include <gtest/gtest.h>

#include "cuda/ladder/kernel_table.h"

namespace tilewise::cuda {
namespace {

// The ladder uses the same rows on every device.
TEST(LadderKernelTable, HasARowForEveryHeadDimension) {
  for (std::int64_t columns = 1; columns <= ladder::kMaxColumns; ++columns) {
    const int row = ladder::tile_row(columns, sm80::kSmall);
    ASSERT_GE(row, 0) << columns;
    EXPECT_GE(ladder::kFlash1Kernels[row].columns, columns);
    EXPECT_GE(ladder::kFlash1Gradients[row].columns, columns);
    EXPECT_GE(ladder::kStandardKernels[row].columns, columns);
  }
  EXPECT_EQ(ladder::tile_row(ladder::kMaxColumns + 1, sm80::kLarge), -1);
  EXPECT_EQ(ladder::tile_row(64, sm80::kSmall - 1), -1);
}

}  // namespace
}  // namespace tilewise::cuda
