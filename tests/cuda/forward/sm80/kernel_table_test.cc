// Which row of the table of cuda_sm80 a problem uses.
#include <gtest/gtest.h>

#include "cuda/forward/sm80/kernel_table.h"

namespace tilewise::cuda {
namespace {

// Every head dimension has a kernel for 99 KB. More memory never selects one for less.
TEST(Sm80KernelTable, HasARowForEveryHeadDimension) {
  for (std::int64_t columns = 1; columns <= sm80::kMaxColumns; ++columns) {
    for (const bool score_mod : {false, true}) {
      for (const std::int64_t bytes : {sm80::kSmall, sm80::kLarge, sm80::kHuge}) {
        for (const std::int64_t keys : {0, sm80::kLongKeys - 1, sm80::kLongKeys}) {
          const int row = sm80::tile_row(columns, score_mod, bytes, keys);
          ASSERT_GE(row, 0) << columns;
          EXPECT_GE(sm80::kKernels[row].columns, columns);
          EXPECT_LE(sm80::kKernels[row].shared_bytes, bytes);
          EXPECT_LE(sm80::kKernels[row].least_keys, keys);
          EXPECT_EQ(sm80::kKernels[row].score_mod, score_mod);
        }
      }
    }
  }
  EXPECT_EQ(sm80::tile_row(sm80::kMaxColumns + 1, false, sm80::kLarge, 1), -1);
  EXPECT_EQ(sm80::tile_row(64, false, sm80::kSmall - 1, 1), -1);
  // Long sequences use eight warps, short ones four; pairs of warps need memory for their exchange.
  const auto row_of = [](std::int64_t bytes, std::int64_t keys) {
    return sm80::kKernels[sm80::tile_row(256, false, bytes, keys)];
  };
  for (const std::int64_t bytes : {sm80::kLarge, sm80::kHuge}) {
    EXPECT_EQ(row_of(bytes, sm80::kLongKeys).warps, 8);
    EXPECT_TRUE(row_of(bytes, sm80::kLongKeys).paired);
    EXPECT_EQ(row_of(bytes, sm80::kLongKeys - 1).warps, 4);
    EXPECT_EQ(row_of(bytes, sm80::kLongKeys - 1).paired, bytes == sm80::kHuge);
  }
}

}  // namespace
}  // namespace tilewise::cuda
