// Which of the Hopper kernels a problem takes, and what its configuration says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cuda/sm90/choice.h"

namespace tilewise::cuda::sm90 {
namespace {

TEST(Config, NumbersStandForConfigurations) {
  std::set<std::uint64_t> codes;
  std::vector<KernelConfig> configs = {folding(config_of(kFoldingRow, false, false))};
  for (int row = 0; row < kTileRows; ++row) {
    for (const bool fp16 : {false, true}) {
      const KernelConfig plain = config_of(row, fp16, false);
      configs.push_back(plain);
      const bool has_narrow = std::count(kNarrowRows, kNarrowRows + kNarrowCount, row) == 1;
      EXPECT_EQ(has_narrow, !plain.narrow) << row;
      if (has_narrow) configs.push_back(narrow(plain));
      if (general_row(row) == row) configs.push_back(config_of(row, fp16, true));
    }
  }
  for (const KernelConfig& config : configs) {
    EXPECT_TRUE(codes.insert(encode(config)).second);
    const KernelConfig back = decode(encode(config));
    EXPECT_EQ(back.fp16, config.fp16);
    EXPECT_EQ(back.general, config.general);
    EXPECT_EQ(back.keeps, config.keeps);
    EXPECT_EQ(back.folds, config.folds);
    EXPECT_EQ(back.narrow, config.narrow);
    EXPECT_EQ(back.head_dim, config.head_dim);
    EXPECT_EQ(back.q_tile, config.q_tile);
    EXPECT_EQ(back.k_tile, config.k_tile);
    EXPECT_EQ(back.k_stages, config.k_stages);
    EXPECT_EQ(back.v_stages, config.v_stages);
    EXPECT_EQ(back.value_dim, config.value_dim);
    EXPECT_EQ(back.q_stages, config.q_stages);
  }
}

TEST(Config, TheFirstRowThatHoldsAProblemIsTaken) {
  for (int dim = 8; dim <= 256; dim += 8) {
    for (int value_dim = 8; value_dim <= 256; value_dim += 8) {
      for (const std::int64_t keys : {1, 272, 273, 1024, 1025, 2048, 2049, 1 << 29}) {
        for (const std::int64_t seen : {std::int64_t{0}, keys / 2, keys}) {
          const TileRow& row = kTiles[tile_row(dim, value_dim, keys, seen)];
          EXPECT_GE(row.head_dim, dim);
          EXPECT_GE(row.value_dim, value_dim);
          EXPECT_GE(row.most_keys, keys);
          EXPECT_GE(row.most_seen, seen);
        }
      }
    }
  }
  EXPECT_EQ(kTiles[tile_row(192, 128, 4096, 4096)].value_dim, 128);
  EXPECT_EQ(kTiles[tile_row(64, 64, 512, 512)].q_tile, 128);
  EXPECT_FALSE(kTiles[tile_row(128, 128, 512, 256)].keeps);
  EXPECT_TRUE(kTiles[tile_row(128, 128, 512, 512)].keeps);
}

// What setmaxnreg hands out is what the block was given at its start.
TEST(Config, RegistersAddUp) {
  constexpr int kRegisters = 65536;
  for (const TileRow& row : kTiles) {
    const KernelConfig config = config_of(static_cast<int>(&row - kTiles), false, false);
    const int at_entry = kRegisters / config.threads() / 8 * 8;
    const int used =
        128 * (config.producer_registers() + config.warpgroups() * config.consumer_registers());
    EXPECT_LE(used, at_entry * config.threads());
    EXPECT_EQ(tile_row(row.head_dim, row.value_dim, row.most_keys, row.most_seen), &row - kTiles);
  }
}

problem::Problem window(std::int64_t rows, std::int64_t keys, std::int64_t left, std::int64_t right,
                        bool top_left = false) {
  problem::Problem p;
  p.dtype = TILEWISE_BF16;
  p.head_dim = p.value_dim = 128;
  p.max_q = rows;
  p.max_k = keys;
  p.window_left = left;
  p.window_right = right;
  p.top_left = top_left;
  p.scale = 0.1;
  return p;
}

// Of the tiles of queries of sequences of the greatest lengths that are whole: how many fold, and
// how many have all of their windows within the keys.
struct Tiles {
  int folded = 0;
  int within = 0;
};
Tiles tiles_of(const problem::Problem& p) {
  constexpr std::int32_t kTile = 128;
  const std::int64_t diagonal = p.top_left ? 0 : p.max_k - p.max_q;
  const tile::Edges edges =
      tile::window_edges(in_reach(p.max_k), static_cast<std::int32_t>(diagonal),
                         in_reach(p.window_left), in_reach(p.window_right));
  Tiles tiles;
  for (std::int32_t row = 0; row + kTile <= p.max_q; row += kTile) {
    const std::int32_t last = row + kTile - 1;
    tiles.folded += tile::is_folded(edges, row, tile::key_tiles(edges, row, last, kTile), kTile);
    tiles.within += row + diagonal >= p.window_left && last + diagonal + p.window_right < p.max_k;
  }
  return tiles;
}

TEST(Choice, WindowsThatFoldTakeTheKernelThatDoes) {
  const problem::Problem causal = window(16384, 16384, 1023, 0);
  for (const std::int32_t dtype : {TILEWISE_BF16, TILEWISE_FP16}) {
    problem::Problem p = causal;
    p.dtype = dtype;
    const Choice choice = choose(p, is_general(p), true);
    EXPECT_EQ(choice.row, kFoldingRow);
    EXPECT_TRUE(choice.config.folds);
    EXPECT_FALSE(choice.config.narrow);
    EXPECT_EQ(choice.config.fp16, dtype == TILEWISE_FP16);
  }
  const auto folds = [](const problem::Problem& p, bool wide_out = true) {
    return choose(p, is_general(p), wide_out).config.folds;
  };
  EXPECT_FALSE(folds(causal, false));
  EXPECT_FALSE(folds(window(16384, 16384, -1, 0)));
  EXPECT_FALSE(folds(window(16384, 16384, 1023, -1)));
  problem::Problem other = causal;
  other.softcap = 30;
  EXPECT_FALSE(folds(other));
  other = causal;
  other.scale = -0.1;
  EXPECT_FALSE(folds(other));
  other = causal;
  other.head_dim = other.value_dim = 64;
  EXPECT_FALSE(folds(other));
  other.head_dim = other.value_dim = 104;
  EXPECT_TRUE(folds(other));
  other.head_dim = other.value_dim = 136;
  EXPECT_FALSE(folds(other));
}

// Of a packed batch whose rows must not depend on each other, whatever the longest sequence is.
TEST(Choice, BatchInvariantPackedBatchesTakeOneKernel) {
  for (const std::int64_t dim : {64, 128, 192, 256}) {
    std::vector<std::uint64_t> invariant;
    std::vector<std::uint64_t> others;
    for (const std::int64_t length : {1, 100, 500, 1025, 4096}) {
      for (const std::int64_t left : {-1, 127, 1023}) {
        problem::Problem p = window(length, length, left, 0);
        p.head_dim = p.value_dim = dim;
        others.push_back(encode(choose(p, false, true).config));
        p.q_packed = p.k_packed = p.batch_invariant = true;
        invariant.push_back(encode(choose(p, false, true).config));
      }
    }
    EXPECT_EQ(std::count(invariant.begin(), invariant.end(), invariant[0]), 15) << dim;
    if (dim <= 128) {
      EXPECT_NE(std::count(others.begin(), others.end(), others[0]), 15) << dim;
    }
  }
}

// Every tile folds that can where the kernel is chosen that does, and none where it is not.
TEST(Choice, TilesFoldWhereItIsChosen) {
  std::mt19937 random(std::random_device{}());
  const auto draw = [&random](int most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(most + 1));
  };
  int chosen = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::int64_t rows = draw(1) == 0 ? 128 * (1 + draw(20)) : 1 + draw(2600);
    const std::int64_t keys = draw(1) == 0 ? rows + 128 * draw(4) : 1 + draw(2600);
    const std::int64_t width = draw(1) == 0 ? 128 * (1 + draw(8)) : 1 + draw(1000);
    const std::int64_t right = draw(1) == 0 ? 0 : draw(static_cast<int>(width) - 1);
    const problem::Problem p = window(rows, keys, width - 1 - right, right, draw(3) == 0);
    const bool folds = choose(p, is_general(p), true).config.folds;
    const Tiles tiles = tiles_of(p);
    chosen += folds && tiles.within > 0;
    const std::string what = "rows " + std::to_string(rows) + ", keys " + std::to_string(keys) +
                             ", window " + std::to_string(p.window_left) + ", " +
                             std::to_string(right) + (p.top_left ? ", top left" : "");
    if (choose(p, false, true).row == kFoldingRow) {
      EXPECT_EQ(tiles.folded, folds ? tiles.within : 0) << what;
    }
  }
  EXPECT_GT(chosen, 100);
}

// Rows of out that the plain kernels do not take.
TEST(Choice, NarrowRowsTakeAKernelThatWritesThem) {
  for (const std::int64_t dim : {64, 128, 192, 256}) {
    for (const std::int64_t length : {128, 512, 4096}) {
      for (const std::int64_t left : {-1, 255}) {
        problem::Problem p = window(length, length, left, 0);
        p.head_dim = p.value_dim = dim;
        EXPECT_TRUE(choose(p, false, false).config.narrow) << dim << ", " << length;
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::cuda::sm90
