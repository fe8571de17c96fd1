// Which row of the table of cuda_sm90 a problem uses, and what its configuration says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "cuda/forward/sm90/select.h"
#include "support/seed.h"

namespace tilewise::cuda::sm90 {
namespace {

problem::Problem problem_of(std::int64_t dim, std::int64_t value_dim, std::int64_t keys,
                            std::int64_t left = -1) {
  problem::Problem p;
  p.dtype = TILEWISE_BF16;
  p.head_dim = dim;
  p.value_dim = value_dim;
  p.max_q = p.max_k = keys;
  p.window_left = left;
  p.window_right = left < 0 ? -1 : 0;
  p.scale = 0.1;
  return p;
}

TEST(Sm90KernelTable, TheFirstRowThatFitsIsUsed) {
  for (int dim = 8; dim <= 256; dim += 8) {
    for (int value_dim = 8; value_dim <= 256; value_dim += 8) {
      for (const std::int64_t keys : {1, 272, 273, 1024, 1025, 2048, 2049, 1 << 29}) {
        for (const std::int64_t left : {std::int64_t{-1}, std::int64_t{0}, keys / 2}) {
          const problem::Problem p = problem_of(dim, value_dim, keys, left);
          for (const bool score_mod : {false, true}) {
            for (const bool vector_stores : {false, true}) {
              const KernelRow& row = kKernels[select_kernel(p, score_mod, vector_stores)];
              EXPECT_GE(row.head_dim, dim);
              EXPECT_GE(row.value_dim, value_dim);
              EXPECT_GE(row.max_keys, score_mod ? 0 : keys);
              EXPECT_GE(row.max_visible, score_mod ? 0 : visible_keys(p));
              EXPECT_EQ(row.variant == Variant::kScoreMod, score_mod);
              EXPECT_TRUE(vector_stores || row.config(false).scalar_stores);
            }
          }
        }
      }
    }
  }
  const auto row_of = [](const problem::Problem& p) {
    return kKernels[select_kernel(p, false, true)];
  };
  EXPECT_EQ(row_of(problem_of(192, 128, 4096)).value_dim, 128);
  EXPECT_EQ(row_of(problem_of(64, 64, 512)).q_tile, 128);
  EXPECT_EQ(row_of(problem_of(64, 64, 1025)).q_tile, 192);
  EXPECT_FALSE(row_of(problem_of(128, 128, 256)).lazy_max);
  EXPECT_TRUE(row_of(problem_of(128, 128, 512)).lazy_max);
}

// The registers that setmaxnreg gives to all warps are no more than those of the block at its
// start.
TEST(Sm90KernelTable, RegistersAddUp) {
  constexpr int kRegisters = 65536;
  for (const KernelRow& row : kKernels) {
    const KernelConfig config = row.config(false);
    const int at_entry = kRegisters / config.threads() / 8 * 8;
    const int used =
        128 * (config.producer_registers() + config.consumers() * config.consumer_registers());
    EXPECT_LE(used, at_entry * config.threads());
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

// For sequences of the maximum lengths: the number of whole tiles of queries whose window edges
// fuse, and of those whose windows are within the keys.
struct Tiles {
  int fused = 0;
  int within = 0;
};
Tiles tiles_of(const problem::Problem& p) {
  constexpr std::int32_t kTile = 128;
  const std::int64_t diagonal = p.top_left ? 0 : p.max_k - p.max_q;
  const tile::WindowBand edges =
      tile::window_band(clamped_length(p.max_k), static_cast<std::int32_t>(diagonal),
                        clamped_length(p.window_left), clamped_length(p.window_right));
  Tiles tiles;
  for (std::int32_t row = 0; row + kTile <= p.max_q; row += kTile) {
    const std::int32_t last = row + kTile - 1;
    tiles.fused +=
        tile::has_fused_edges(edges, row, tile::key_tiles(edges, row, last, kTile), kTile);
    tiles.within += row + diagonal >= p.window_left && last + diagonal + p.window_right < p.max_k;
  }
  return tiles;
}

const KernelRow& chosen(const problem::Problem& p, bool vector_stores = true) {
  return kKernels[select_kernel(p, needs_score_mod(p), vector_stores)];
}
bool fuses(const problem::Problem& p, bool vector_stores = true) {
  return chosen(p, vector_stores).variant == Variant::kFusedEdges;
}

TEST(Sm90KernelTable, WindowsWhoseEdgesFuseTakeTheKernelForThem) {
  const problem::Problem causal = window(16384, 16384, 1023, 0);
  EXPECT_TRUE(fuses(causal));
  EXPECT_FALSE(chosen(causal).config(false).scalar_stores);
  EXPECT_FALSE(fuses(causal, false));
  EXPECT_FALSE(fuses(window(16384, 16384, -1, 0)));
  EXPECT_FALSE(fuses(window(16384, 16384, 1023, -1)));
  problem::Problem other = causal;
  other.softcap = 30;
  EXPECT_FALSE(fuses(other));
  other = causal;
  other.scale = -0.1;
  EXPECT_FALSE(fuses(other));
  other = causal;
  other.head_dim = other.value_dim = 64;
  EXPECT_FALSE(fuses(other));
  other.head_dim = other.value_dim = 104;
  EXPECT_TRUE(fuses(other));
  other.head_dim = other.value_dim = 136;
  EXPECT_FALSE(fuses(other));
}

// Slices and boolean masks take a kernel with a block mask, and one with a score mod only for a
// score mod: the mask is none.
TEST(Sm90KernelTable, MasksTakeKernelsWithABlockMask) {
  for (const std::int64_t dim : {64, 128, 192, 256}) {
    for (const bool slices : {false, true}) {
      problem::Problem p = problem_of(dim, dim == 192 ? 128 : dim, 4096);
      if (slices) {
        p.slices.dtype = TILEWISE_INT64;
      } else {
        p.mask.dtype = TILEWISE_BOOL;
      }
      EXPECT_FALSE(needs_score_mod(p));
      EXPECT_TRUE(has_block_mask(chosen(p).variant));
      EXPECT_TRUE(has_block_mask(chosen(p, false).variant));
      const Variant variant = dim <= 128 ? Variant::kBlockMask : Variant::kBlockMaskScoreMod;
      EXPECT_EQ(chosen(p).variant, variant);
      EXPECT_EQ(chosen(p).q_tile, dim == 64 && slices ? 192 : 128);
      p.softcap = 30;
      EXPECT_EQ(chosen(p).variant, Variant::kBlockMaskScoreMod);
      EXPECT_EQ(chosen(p).q_tile, 128);
    }
  }
}

// A batch-invariant packed batch uses the same kernel, whatever its longest sequence is.
TEST(Sm90KernelTable, BatchInvariantPackedBatchesTakeOneKernel) {
  for (const std::int64_t dim : {64, 128, 192, 256}) {
    std::vector<int> invariant;
    std::vector<int> others;
    for (const std::int64_t length : {1, 100, 500, 1025, 4096}) {
      for (const std::int64_t left : {-1, 127, 1023}) {
        problem::Problem p = window(length, length, left, 0);
        p.head_dim = p.value_dim = dim;
        others.push_back(select_kernel(p, false, true));
        p.q_packed = p.k_packed = p.batch_invariant = true;
        invariant.push_back(select_kernel(p, false, true));
      }
    }
    EXPECT_EQ(std::count(invariant.begin(), invariant.end(), invariant[0]), 15) << dim;
    if (dim <= 128) {
      EXPECT_NE(std::count(others.begin(), others.end(), others[0]), 15) << dim;
    }
  }
}

TEST(Sm90KernelTable, TheKernelForFusedEdgesFusesEveryTileThatMay) {
  std::mt19937 random(static_cast<std::uint32_t>(tests::run_seed()));
  const auto draw = [&random](int most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(most + 1));
  };
  int taken = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::int64_t rows = draw(1) == 0 ? 128 * (1 + draw(20)) : 1 + draw(2600);
    const std::int64_t keys = draw(1) == 0 ? rows + 128 * draw(4) : 1 + draw(2600);
    const std::int64_t width = draw(1) == 0 ? 128 * (1 + draw(8)) : 1 + draw(1000);
    const std::int64_t right = draw(1) == 0 ? 0 : draw(static_cast<int>(width) - 1);
    const problem::Problem p = window(rows, keys, width - 1 - right, right, draw(3) == 0);
    const bool fused = fuses(p);
    const Tiles tiles = tiles_of(p);
    taken += fused && tiles.within > 0;
    const std::string what = "rows " + std::to_string(rows) + ", keys " + std::to_string(keys) +
                             ", window " + std::to_string(p.window_left) + ", " +
                             std::to_string(right) + (p.top_left ? ", top left" : "");
    if (fused || chosen(p).max_visible == kAny) {
      EXPECT_EQ(tiles.fused, fused ? tiles.within : 0) << what;
    }
  }
  EXPECT_GT(taken, 100);
}

TEST(Sm90KernelTable, OutThatDoesNotTake16BytesGetsAKernelWithScalarStores) {
  for (const std::int64_t dim : {64, 128, 192, 256}) {
    for (const std::int64_t length : {128, 512, 4096}) {
      for (const std::int64_t left : {-1, 255}) {
        problem::Problem p = window(length, length, left, 0);
        p.head_dim = p.value_dim = dim;
        EXPECT_TRUE(chosen(p, false).config(false).scalar_stores) << dim << ", " << length;
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::cuda::sm90
