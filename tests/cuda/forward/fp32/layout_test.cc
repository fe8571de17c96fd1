// Which rows, keys and columns the threads of cuda_fp32 have, and that their loads have no bank
// conflicts.
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "cuda/forward/fp32/kernel_table.h"
#include "cuda/forward/fp32/layout.h"

namespace tilewise::cuda::fp32 {
namespace {

TEST(Fp32Layout, LanesShareTheRowsAndColumnsOfAWarp) {
  for (const int columns : {64, 128, 256}) {
    std::set<std::pair<int, int>> seen;
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < kThreadRows; ++i) {
        for (int c = 0; c < columns / kAcross; ++c) {
          const int column = lane_run(lane, c / kVector) + c % kVector;
          EXPECT_LT(column, columns);
          EXPECT_TRUE(seen.insert({lane_row(lane, i), column}).second);
        }
      }
    }
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(kWarpRows * columns));
  }
}

// The tile stores key i of lane l in row l % 16 + 16 i, where the product Q K^T reads it.
TEST(Fp32Layout, KeysOfALaneFollowEachOther) {
  for (const int keys : {1, 2, 4}) {
    for (int key = 0; key < kAcross * keys; ++key) {
      const int lane = key / keys;
      const int tile_row = key_row(key, keys);
      EXPECT_EQ(tile_row, lane + kAcross * (key % keys));
      EXPECT_EQ(key_at(tile_row, keys), key);
    }
  }
}

// The 16-byte loads of 8 lanes use 8 different groups of banks.
TEST(Fp32Layout, AQuarterOfAWarpTouchesEveryBankOnce) {
  for (const TileRow& row : kKernels) {
    const KernelConfig config = row.config();
    for (int first = 0; first < 32; first += 8) {
      for (int n = 0; n < config.thread_keys(); ++n) {
        std::set<int> groups;
        for (int lane = first; lane < first + 8; ++lane) {
          const int tile_row =
              key_row(lane_across(lane) * config.thread_keys() + n, config.thread_keys());
          groups.insert(tile_row * config.row() / kVector % 8);
        }
        EXPECT_EQ(groups.size(), 8u) << row.reason;
      }
      std::set<int> runs;
      for (int lane = first; lane < first + 8; ++lane) runs.insert(lane_run(lane, 0) / kVector % 8);
      EXPECT_EQ(runs.size(), 8u);
    }
  }
}

}  // namespace
}  // namespace tilewise::cuda::fp32
