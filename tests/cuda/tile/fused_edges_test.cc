// Window edges that fuse: the first and the last tile of keys count as one.
#include <gtest/gtest.h>

#include <random>

#include "cuda/tile/scheduler.h"
#include "support/seed.h"

namespace tilewise::cuda {
namespace {

// In a window whose edges fuse, a row sees exactly those columns of the last tile of keys that it
// does not see of the first one. It sees all tiles between them. forward/sm90/fused_edges.cuh draws
// the halves.
TEST(FusedEdges, TwoKeyTilesAreVisibleAsOne) {
  constexpr std::int32_t kTile = 128;
  std::mt19937 random(static_cast<std::uint32_t>(tests::run_seed()));
  const auto draw = [&random](std::int32_t most) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(most + 1));
  };
  int fused = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::int32_t k_len = 1 + draw(3000);
    const std::int32_t width = draw(3) == 0 ? draw(1500) : kTile * draw(12);
    const std::int32_t right = draw(1) == 0 ? 0 : draw(300);
    const std::int32_t diagonal = draw(1) == 0 ? kTile * (draw(10) - 5) : draw(600) - 300;
    const tile::WindowBand edges = tile::window_band(k_len, diagonal, width - 1 - right, right);
    const std::int32_t row = draw(20) * kTile;
    const std::int32_t rows = draw(3) == 0 ? 1 + draw(kTile - 1) : kTile;
    const tile::TileRange keys = tile::key_tiles(edges, row, row + rows - 1, kTile);
    if (!tile::has_fused_edges(edges, row, keys, kTile)) continue;
    ++fused;
    const auto is_visible = [&](std::int32_t of, std::int32_t key) {
      return edges.begin(row + of) <= key && key < edges.end(row + of);
    };
    for (std::int32_t of = 0; of < kTile; ++of) {
      for (std::int32_t column = 0; column < kTile; ++column) {
        const bool first = is_visible(of, keys.begin * kTile + column);
        const bool last = is_visible(of, (keys.end - 1) * kTile + column);
        ASSERT_NE(first, last);
        if (of < kTile / 2 && column >= kTile / 2) {
          ASSERT_TRUE(first);
        }
        if (of >= kTile / 2 && column < kTile / 2) {
          ASSERT_TRUE(last);
        }
      }
      ASSERT_TRUE(edges.full(row + of, row + of, (keys.begin + 1) * kTile, (keys.end - 1) * kTile));
    }
  }
  EXPECT_GT(fused, 100);
}

// The edges of a causal window of 1024 keys fuse in every tile of queries but those that begin
// before the first key.
TEST(FusedEdges, CausalWindowsFuse) {
  const tile::WindowBand edges = tile::window_band(16384, 0, 1023, 0);
  for (std::int32_t q_tile = 0; q_tile < 128; ++q_tile) {
    const std::int32_t row = q_tile * 128;
    const tile::TileRange keys = tile::key_tiles(edges, row, row + 127, 128);
    EXPECT_EQ(tile::has_fused_edges(edges, row, keys, 128), q_tile >= 8) << q_tile;
  }
}

}  // namespace
}  // namespace tilewise::cuda
