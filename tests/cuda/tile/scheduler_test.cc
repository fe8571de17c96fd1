// Every tile of queries is computed once, by one block, and the long ones come first.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "cuda/tile/scheduler.h"
#include "math/integer.h"
#include "support/seed.h"

namespace tilewise::cuda {
namespace {

using tile::FastSchedule;
using tile::PackedSchedule;
using tile::Schedule;
using tile::static_tile;
using tile::TileCoord;
using Key = std::tuple<std::int32_t, std::int32_t, std::int32_t>;

TEST(Schedule, PreparedDivisionsGiveTheSameWork) {
  const auto compare = [](const Schedule& schedule) {
    const FastSchedule prepared(schedule);
    ASSERT_EQ(prepared.count(), schedule.count());
    for (std::int32_t i = 0; i < schedule.count(); ++i) {
      const TileCoord work = schedule.tile_coord(i);
      const TileCoord same = prepared.tile_coord(i);
      ASSERT_EQ(same.batch, work.batch);
      ASSERT_EQ(same.head, work.head);
      ASSERT_EQ(same.q_tile, work.q_tile);
    }
  };
  constexpr std::int32_t kBatch = 3;
  for (const std::int32_t q_tiles : {1, 3, 128}) {
    for (const std::int32_t heads : {1, 6, 16}) {
      for (const std::int32_t swizzle : {0, 1, 4, 5}) {
        compare({q_tiles, heads, kBatch, swizzle,
                 swizzle > 0 ? math::ceil_div(heads * kBatch, swizzle) : 0});
      }
      // The last swizzle group has more heads than the others.
      compare(tile::with_small_swizzle({q_tiles, heads, kBatch, heads * kBatch, 1}, 8, 1));
    }
  }
}

TEST(Schedule, DenseWorkIsNumberedOnce) {
  for (const std::int32_t swizzle : {0, 1, 2, 5, 12}) {
    const Schedule schedule = {7, 4, 3, swizzle, swizzle > 0 ? math::ceil_div(12, swizzle) : 0};
    std::set<Key> seen;
    for (std::int32_t i = 0; i < schedule.count(); ++i) {
      const TileCoord work = schedule.tile_coord(i);
      EXPECT_GE(work.batch, 0);
      EXPECT_LT(work.batch, 3);
      EXPECT_LT(work.head, 4);
      EXPECT_GE(work.q_tile, 0);
      EXPECT_LT(work.q_tile, 7);
      EXPECT_TRUE(seen.emplace(work.batch, work.head, work.q_tile).second)
          << "swizzle " << swizzle << " index " << i;
    }
    EXPECT_EQ(seen.size(), 7u * 4 * 3);
  }
}

TEST(Schedule, SwizzleGroupsOrderTheLongestFirst) {
  const Schedule schedule = {6, 4, 2, 3, 3};
  for (std::int32_t i = 1; i < 3 * 6; ++i) {
    EXPECT_LE(schedule.tile_coord(i).q_tile, schedule.tile_coord(i - 1).q_tile);
  }
  EXPECT_EQ(schedule.tile_coord(0).q_tile, 5);
  EXPECT_EQ(schedule.tile_coord(3 * 6).q_tile, 5);  // the next swizzle group begins
}

TEST(Schedule, RoundsAreASmallSwizzleGroupEachButForTheLast) {
  for (const std::int32_t q_tiles : {1, 2, 4, 9, 64}) {
    for (const std::int32_t group : {1, 4}) {
      for (const std::int32_t batch : {1, 3, 9}) {
        const Schedule whole = {q_tiles, 16, batch, 16 * batch, 1};
        const Schedule schedule = tile::with_small_swizzle(whole, 132, group);
        EXPECT_EQ(schedule.swizzle % group, 0);
        std::set<Key> seen;
        for (std::int32_t i = 0; i < schedule.count(); ++i) {
          const TileCoord work = schedule.tile_coord(i);
          EXPECT_TRUE(seen.emplace(work.batch, work.head, work.q_tile).second);
          EXPECT_LT(work.q_tile, q_tiles);
          EXPECT_LT(work.batch, batch);
        }
        EXPECT_EQ(static_cast<std::int32_t>(seen.size()), schedule.count());
        if (schedule.swizzle == whole.swizzle) continue;
        EXPECT_GE(schedule.swizzle * q_tiles, 66);
        const std::int32_t last =
            16 * batch - (schedule.swizzle_groups - 1) * schedule.swizzle;  // heads
        EXPECT_TRUE(schedule.swizzle_groups == 1 || last < 7 * schedule.swizzle);
        EXPECT_GE(last, schedule.swizzle);
      }
    }
  }
}

// The time of a launch in which each block computes the next tile when it is done with one. A tile
// of queries costs its tiles of keys and about one more.
double time_of(const std::vector<int>& keys_of_work, int blocks) {
  std::multiset<double> ends;
  for (int block = 0; block < blocks; ++block) ends.insert(0);
  for (const int keys : keys_of_work) {
    const double end = *ends.begin() + keys + 1;
    ends.erase(ends.begin());
    ends.insert(end);
  }
  return *ends.rbegin();
}

// A window with 16 heads of 128 tiles, of which the first eight see fewer keys. A static schedule
// would give 68 of the blocks a tile more than the others.
TEST(Schedule, ShortTilesOfAWindowFillTheEnd) {
  constexpr int kBlocks = 132;
  constexpr std::int32_t kTile = 128;
  const tile::WindowBand edges = tile::window_band(16384, 0, 1023, 0);
  const Schedule schedule = tile::with_small_swizzle({128, 16, 1, 16, 1}, kBlocks, 1);
  std::vector<int> keys_of_work;
  double sum = 0;
  for (std::int32_t i = 0; i < schedule.count(); ++i) {
    const std::int32_t row = schedule.tile_coord(i).q_tile * kTile;
    const tile::TileRange keys = tile::key_tiles(edges, row, row + kTile - 1, kTile);
    keys_of_work.push_back(keys.end - keys.begin);
    sum += keys_of_work.back() + 1;
  }
  EXPECT_LT(time_of(keys_of_work, kBlocks), 1.02 * sum / kBlocks);
}

TEST(Schedule, PackedWorkIsNumberedOnce) {
  const std::vector<std::int32_t> starts = {0, 0, 3, 4, 4, 9, 9};  // empty sequences too
  for (const bool longest_first : {false, true}) {
    const PackedSchedule schedule = {starts.data(), 5, 6, longest_first};
    std::set<Key> seen;
    for (std::int32_t i = 0; i < schedule.count(); ++i) {
      const TileCoord work = schedule.tile_coord(i);
      const std::size_t b = static_cast<std::size_t>(work.batch);
      EXPECT_LT(work.q_tile, starts[b + 1] - starts[b]);
      EXPECT_TRUE(seen.emplace(work.batch, work.head, work.q_tile).second);
    }
    EXPECT_EQ(seen.size(), 9u * 5);
  }
}

// In a schedule without swizzle, the tiles of a head follow each other.
TEST(Schedule, TilesOfAHeadFollowItsFirst) {
  const std::vector<std::int32_t> starts = {0, 0, 3, 4, 4, 9, 9};
  const PackedSchedule packed = {starts.data(), 5, 6, false};
  for (std::int32_t i = 0; i < packed.count(); ++i) {
    const TileCoord work = packed.tile_coord(i);
    EXPECT_EQ(packed.first(work.batch, work.head) + work.q_tile, i);
  }
  const Schedule dense = {7, 4, 3, 0, 0};
  for (std::int32_t i = 0; i < dense.count(); ++i) {
    const TileCoord work = dense.tile_coord(i);
    EXPECT_EQ(dense.first(work.batch, work.head) + work.q_tile, i);
  }
}

// With windows of any edges, every tile of keys comes once, a full one first if there is one.
TEST(Schedule, KeyTilesComeOnceAfterAFullOne) {
  std::mt19937 random(static_cast<std::uint32_t>(tests::run_seed()));
  const auto draw = [&random](std::int32_t most) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(most + 1));
  };
  for (int i = 0; i < 20000; ++i) {
    const std::int32_t k_len = 1 + draw(3000);
    const std::int32_t q_len = 1 + draw(3000);
    const tile::WindowBand edges = tile::window_band(
        k_len, draw(1) == 0 ? 0 : k_len - q_len, draw(3000) - 1, draw(1) == 0 ? 0 : draw(700) - 1);
    const std::int32_t k_tile = 64 << draw(1);
    const std::int32_t first = draw(q_len - 1);
    const std::int32_t last = std::min(first + 127, q_len - 1);
    const tile::TileRange keys = tile::key_tiles(edges, first, last, k_tile);
    if (keys.begin >= keys.end) continue;
    const tile::TileRange full = tile::full_key_tiles(edges, first, last, k_tile);
    bool any = false;
    for (std::int32_t key = keys.begin; key < keys.end; ++key) {
      const bool is_full = edges.full(first, last, key * k_tile, (key + 1) * k_tile);
      any = any || is_full;
      ASSERT_EQ(is_full, full.begin <= key && key < full.end);
    }
    std::int32_t key = tile::start_key(full, keys.end);
    ASSERT_EQ(any, full.begin <= key && key < full.end);
    std::set<std::int32_t> seen;
    for (std::int32_t left = keys.end - keys.begin; left > 0; --left) {
      ASSERT_TRUE(seen.insert(key).second);
      ASSERT_LE(keys.begin, key);
      ASSERT_GT(keys.end, key);
      key = tile::next_key_tile(key, keys.begin, keys.end);
    }
  }
}

// A causal window of 1024 keys in the middle of a sequence: seven tiles of nine are full.
TEST(Schedule, NeighbouringTilesStartWithTheSameKeys) {
  const tile::WindowBand edges = tile::window_band(16384, 0, 1023, 0);
  std::set<std::int32_t> starts;
  for (std::int32_t q_tile = 64; q_tile < 72; ++q_tile) {
    const std::int32_t first = q_tile * 128;
    const tile::TileRange full = tile::full_key_tiles(edges, first, first + 127, 128);
    EXPECT_EQ(full.begin, q_tile - 7);
    EXPECT_EQ(full.end, q_tile);
    starts.insert(tile::start_key(full, q_tile + 1));
  }
  EXPECT_LE(starts.size(), 3u);
}

TEST(Schedule, StaticRoundsCoverEveryIndexOnce) {
  for (const std::int32_t blocks : {1, 2, 7, 132}) {
    std::set<std::int32_t> seen;
    for (std::int32_t block = 0; block < blocks; ++block) {
      for (std::int32_t turn = 0; turn < 5; ++turn) {
        EXPECT_TRUE(seen.insert(static_tile(block, blocks, turn)).second);
      }
    }
    EXPECT_EQ(static_cast<std::int32_t>(seen.size()), 5 * blocks);
    EXPECT_EQ(*seen.rbegin(), 5 * blocks - 1);
  }
}

TEST(Schedule, BatchedTilesAreStaticAndHaveKeys) {
  EXPECT_EQ(tile::all_rounds_static(4).batched_tiles(1), tile::kMaxBatchedTiles);
  EXPECT_EQ(tile::all_rounds_static(3).batched_tiles(1), 1);
  EXPECT_EQ(tile::StaticRounds{}.batched_tiles(1), 1);
  const struct {
    std::int32_t rows, heads, left, q_tile, blocks, static_rounds_of, batched;
  } shapes[] = {{16384, 16, 1023, 128, 132, 13, 13},  // of 16 rounds, 14 have equal tiles
                {1300, 4, 512, 128, 4, 7, 7},  // of 11: the shape of the emulated device test
                {1300, 4, 511, 128, 4, 7, 0},  // three tiles of keys and the diagonal one
                {16384, 16, 1023, 192, 132, 8, 8},   {1024, 16, 512, 128, 132, 2, 0},
                {2048, 2, 2048, 128, 4, 2, 0},       {4096, 8, 1023, 128, 132, 2, 0}};
  for (const auto& shape : shapes) {
    const std::int32_t q_tiles = math::ceil_div(shape.rows, shape.q_tile);
    const Schedule schedule = {q_tiles, shape.heads, 1, shape.heads, 1};
    const tile::StaticRounds static_rounds =
        tile::static_window_rounds(schedule, shape.q_tile, 128, shape.left, shape.blocks);
    EXPECT_EQ(static_rounds.count, shape.static_rounds_of) << shape.rows << " " << shape.left;
    EXPECT_EQ(static_rounds.batched, shape.batched) << shape.rows << " " << shape.left;
    EXPECT_EQ(static_rounds.batched_tiles(1),
              static_rounds.batched > 0 ? tile::kMaxBatchedTiles : 1);
    EXPECT_EQ(static_rounds.batched_tiles(
                  std::max(static_rounds.batched - tile::kMaxBatchedTiles, 0) + 1),
              1);
    const tile::WindowBand edges = tile::window_band(shape.rows, 0, shape.left, 0);
    for (std::int32_t index = 0; index < static_rounds.batched * shape.blocks; ++index) {
      const std::int32_t row = schedule.tile_coord(index).q_tile * shape.q_tile;
      const std::int32_t last = std::min(row + shape.q_tile, shape.rows) - 1;
      const tile::TileRange keys = tile::key_tiles(edges, row, last, 128);
      EXPECT_GE(keys.end - keys.begin, tile::kMinBatchedKeyTiles);
    }
  }
  const Schedule swizzle_groups = {128, 16, 1, 8, 2};
  EXPECT_EQ(tile::static_window_rounds(swizzle_groups, 128, 128, 1023, 132).count, 2);
}

}  // namespace
}  // namespace tilewise::cuda
