// What of the fp32 kernels can be looked at without a GPU: who computes what, where the keys of a
// tile lie, and which kernel serves.
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

// Key i of a lane lies in row l % 16 + 16 i of the tile: what the product with K reads.
TEST(Fp32Layout, KeysOfALaneFollowEachOther) {
  for (const int keys : {1, 2, 4}) {
    for (int key = 0; key < kAcross * keys; ++key) {
      const int lane = key / keys;
      const int place = key_place(key, keys);
      EXPECT_EQ(place, lane + kAcross * (key % keys));
      EXPECT_EQ(key_at(place, keys), key);
    }
  }
}

// The 16 bytes that 8 lanes ask for at once lie in 8 different groups of banks.
TEST(Fp32Layout, AQuarterOfAWarpTouchesEveryBankOnce) {
  for (const TileRow& row : kKernels) {
    const KernelConfig config = row.config();
    for (int first = 0; first < 32; first += 8) {
      for (int n = 0; n < config.thread_keys(); ++n) {
        std::set<int> groups;
        for (int lane = first; lane < first + 8; ++lane) {
          const int place =
              key_place(lane_across(lane) * config.thread_keys() + n, config.thread_keys());
          groups.insert(place * config.row() / kVector % 8);
        }
        EXPECT_EQ(groups.size(), 8u) << row.reason;
      }
      std::set<int> runs;
      for (int lane = first; lane < first + 8; ++lane) runs.insert(lane_run(lane, 0) / kVector % 8);
      EXPECT_EQ(runs.size(), 8u);
    }
  }
}

TEST(Fp32Config, ARowServes) {
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
