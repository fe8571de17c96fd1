// Which row of the table of cuda_fp32 a problem uses.
#include <gtest/gtest.h>

#include "cuda/forward/fp32/kernel_table.h"

namespace tilewise::cuda::fp32 {
namespace {

TEST(Fp32KernelTable, HasARowForEveryHeadDimension) {
  for (std::int64_t columns = 1; columns <= kMaxColumns; ++columns) {
    for (const bool score_mod : {false, true}) {
      for (const std::int64_t bytes : {kSmall, kLarge, kHuge}) {
        const int row = tile_row(columns, score_mod, bytes);
        ASSERT_GE(row, 0) << columns;
        EXPECT_GE(kKernels[row].columns, columns);
        EXPECT_LE(kKernels[row].shared_bytes, bytes);
        EXPECT_EQ(kKernels[row].score_mod, score_mod);
      }
    }
  }
  EXPECT_EQ(tile_row(kMaxColumns + 1, false, kHuge), -1);
  EXPECT_EQ(tile_row(64, false, kSmall - 1), -1);
}

}  // namespace
}  // namespace tilewise::cuda::fp32
