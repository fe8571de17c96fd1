// Which row of the backward table of cuda_fp32 a problem uses.
#include "cuda/backward/fp32/kernel_table.h"

#include <gtest/gtest.h>

namespace tilewise::cuda::backward::fp32 {
namespace {

TEST(Fp32BackwardKernelTable, HasARowForEveryHeadDimension) {
  for (std::int64_t columns = 1; columns <= kMaxColumns; ++columns) {
    for (const std::int64_t bytes : {kSmall, kLarge, kHuge}) {
      const int row = tile_row(columns, bytes);
      ASSERT_GE(row, 0) << columns;
      EXPECT_GE(kKernels[row].columns, columns);
      EXPECT_LE(kKernels[row].shared_bytes, bytes);
    }
  }
  EXPECT_EQ(tile_row(kMaxColumns + 1, kHuge), -1);
  EXPECT_EQ(tile_row(64, kSmall - 1), -1);
}

}  // namespace
}  // namespace tilewise::cuda::backward::fp32
