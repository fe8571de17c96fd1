// Which biases and masks are read two columns at a time.
#include <gtest/gtest.h>

#include "cuda/tile/pair_loads.h"

namespace tilewise::cuda {
namespace {

// Two columns are read at once if they are adjacent, and both rows and data are aligned to two.
TEST(PairLoads, NeedAdjacentAlignedColumns) {
  alignas(16) static float numbers[4];
  const auto has = [](std::int32_t dtype, const void* data, std::int64_t batch, std::int64_t head,
                      std::int64_t row, std::int64_t column) {
    return tile::can_load_pairs({const_cast<void*>(data), dtype, batch, head, row, column});
  };
  const char* const bytes = reinterpret_cast<const char*>(numbers);
  EXPECT_TRUE(has(TILEWISE_FP32, numbers, 0, 4, 2, 1));
  EXPECT_TRUE(has(TILEWISE_BF16, bytes + 4, 64, 32, 8, 1));
  EXPECT_TRUE(has(TILEWISE_BOOL, bytes + 2, 64, 32, 8, 1));
  EXPECT_FALSE(has(TILEWISE_FP32, numbers + 1, 0, 4, 2, 1));
  EXPECT_FALSE(has(TILEWISE_FP16, bytes + 2, 64, 32, 8, 1));
  EXPECT_FALSE(has(TILEWISE_BOOL, bytes + 1, 64, 32, 8, 1));
  EXPECT_FALSE(has(TILEWISE_FP32, numbers, 0, 4, 3, 1));
  EXPECT_FALSE(has(TILEWISE_FP32, numbers, 0, 5, 2, 1));
  EXPECT_FALSE(has(TILEWISE_FP32, numbers, 7, 4, 2, 1));
  EXPECT_FALSE(has(TILEWISE_FP32, numbers, 0, 4, 2, 2));
  EXPECT_FALSE(has(TILEWISE_FP32, numbers, 0, 4, 2, 0));
  EXPECT_FALSE(tile::can_load_pairs({}));
}

}  // namespace
}  // namespace tilewise::cuda
