// Compares the mask rule with brute force: bands of random windows and slices, tiles of every
// position and size. Empty and full must be right, and tile_keys and tile_rows exact: nothing is
// visible outside.
#include "math/mask_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "support/seed.h"
#include "verify/random.h"

namespace tilewise::math {
namespace {

using verify::Random;

// A band and the window or slice that it was made from.
struct Sample {
  Band band;
  std::int64_t q_len;
  std::int64_t k_len;
  bool is_slice;
  std::int64_t slice[5];
  std::int64_t diagonal, left, right;

  bool visible(std::int64_t i, std::int64_t j) const {
    if (i < 0 || i >= q_len || j < 0 || j >= k_len) return false;
    if (!is_slice) {
      return (left < 0 || i + diagonal - j <= left) && (right < 0 || j - i - diagonal <= right);
    }
    const auto [q0, q1, k0, k1, kind] = slice;
    if (i < q0 || i >= q1 || j < k0 || j >= k1) return false;
    const std::int64_t d = (k1 - k0) - (q1 - q0);
    const bool causal = kind == kSliceCausal || kind == kSliceBand;
    const bool inverse = kind == kSliceInverseCausal || kind == kSliceBand;
    return (!causal || j - k0 <= i - q0 + d) && (!inverse || j - k0 >= i - q0);
  }
};

Sample random_sample(Random& random) {
  Sample sample = {};
  sample.q_len = random.between(1, 24);
  sample.k_len = random.between(1, 24);
  sample.is_slice = random.chance(0.5);
  if (sample.is_slice) {
    const std::int64_t q0 = random.between(0, sample.q_len);
    const std::int64_t k0 = random.between(0, sample.k_len);
    const std::int64_t slice[5] = {q0, random.between(q0, sample.q_len), k0,
                                   random.between(k0, sample.k_len), random.between(0, 3)};
    std::copy(slice, slice + 5, sample.slice);
    sample.band = slice_band(slice, sample.q_len, sample.k_len, sample.k_len);
  } else {
    sample.diagonal = random.chance(0.5) ? 0 : sample.k_len - sample.q_len;
    sample.left = random.between(-1, 26);
    sample.right = random.between(-1, 26);
    if (random.chance(0.1)) sample.left = INT64_MAX;
    if (random.chance(0.1)) sample.right = INT64_MAX;
    sample.band =
        window_band(sample.q_len, sample.k_len, sample.diagonal, sample.left, sample.right);
  }
  return sample;
}

template <class Check>
void for_random_samples(Check check) {
  const std::uint64_t seed = tests::run_seed();
  TILEWISE_TRACE_SEED();
  Random random(seed);
  for (int i = 0; i < 3000 && !testing::Test::HasFailure(); ++i) check(random_sample(random));
}

TEST(MaskRule, RowsSeeWhatTheSemanticsSay) {
  for_random_samples([](const Sample& sample) {
    for (std::int64_t i = -1; i <= sample.q_len; ++i) {
      const KeyRange keys = visible_keys(sample.band, i);
      for (std::int64_t j = -1; j <= sample.k_len; ++j) {
        ASSERT_EQ(j >= keys.begin && j < keys.end, sample.visible(i, j)) << i << " " << j;
      }
    }
  });
}

struct Tile {
  std::int64_t row_begin, row_end, key_begin, key_end;
};

template <class Check>
void for_tiles(const Sample& sample, Check check) {
  for (const std::int64_t rows : {1, 3, 8}) {
    for (const std::int64_t keys : {1, 4, 7}) {
      for (std::int64_t i = 0; i < sample.q_len; i += rows) {
        for (std::int64_t j = 0; j < sample.k_len; j += keys) {
          check(Tile{i, std::min(i + rows, sample.q_len), j, std::min(j + keys, sample.k_len)});
        }
      }
    }
  }
}

TEST(MaskRule, TilesAreClassifiedExactly) {
  int counts[3] = {0, 0, 0};
  for_random_samples([&](const Sample& sample) {
    for_tiles(sample, [&](const Tile& tile) {
      std::int64_t seen = 0;
      for (std::int64_t i = tile.row_begin; i < tile.row_end; ++i) {
        for (std::int64_t j = tile.key_begin; j < tile.key_end; ++j) {
          seen += sample.visible(i, j) ? 1 : 0;
        }
      }
      const std::int64_t all = (tile.row_end - tile.row_begin) * (tile.key_end - tile.key_begin);
      const TileClass found =
          classify(sample.band, tile.row_begin, tile.row_end, tile.key_begin, tile.key_end);
      ++counts[static_cast<int>(found)];
      ASSERT_TRUE(found != TileClass::kEmpty || seen == 0);
      // A full tile must not be treated as partial.
      ASSERT_EQ(found == TileClass::kFull, seen == all);
    });
  });
  for (const int count : counts) EXPECT_GT(count, 1000);
}

TEST(MaskRule, TileKeysAndRowsAreExact) {
  for_random_samples([](const Sample& sample) {
    for_tiles(sample, [&](const Tile& tile) {
      const KeyRange keys = tile_keys(sample.band, tile.row_begin, tile.row_end);
      const KeyRange rows = tile_rows(sample.band, tile.key_begin, tile.key_end);
      KeyRange seen_keys = {sample.k_len, -1};
      KeyRange seen_rows = {sample.q_len, -1};
      for (std::int64_t i = 0; i < sample.q_len; ++i) {
        for (std::int64_t j = 0; j < sample.k_len; ++j) {
          if (!sample.visible(i, j)) continue;
          if (i >= tile.row_begin && i < tile.row_end) {
            seen_keys = {std::min(seen_keys.begin, j), std::max(seen_keys.end, j + 1)};
          }
          if (j >= tile.key_begin && j < tile.key_end) {
            seen_rows = {std::min(seen_rows.begin, i), std::max(seen_rows.end, i + 1)};
          }
        }
      }
      if (seen_keys.end > 0) {
        ASSERT_EQ(keys.begin, seen_keys.begin);
        ASSERT_EQ(keys.end, seen_keys.end);
      } else {
        ASSERT_GE(keys.begin, keys.end);
      }
      if (seen_rows.end > 0) {
        ASSERT_EQ(rows.begin, seen_rows.begin);
        ASSERT_EQ(rows.end, seen_rows.end);
      } else {
        ASSERT_GE(rows.begin, rows.end);
      }
    });
  });
}

// For one row or one key, the range is exactly what the row sees, or the rows that see the key.
TEST(MaskRule, RangesOfSingleRowsAndKeysAreExact) {
  for_random_samples([](const Sample& sample) {
    for (std::int64_t i = 0; i < sample.q_len; ++i) {
      const KeyRange keys = tile_keys(sample.band, i, i + 1);
      for (std::int64_t j = 0; j < sample.k_len; ++j) {
        ASSERT_EQ(j >= keys.begin && j < keys.end, sample.visible(i, j));
        const KeyRange rows = tile_rows(sample.band, j, j + 1);
        ASSERT_EQ(i >= rows.begin && i < rows.end, sample.visible(i, j)) << i << " " << j;
      }
    }
  });
}

// The contents of slices are not trusted: any numbers give a band inside the tensors.
TEST(MaskRule, HostileSlicesStayInside) {
  const std::uint64_t seed = tests::run_seed();
  TILEWISE_TRACE_SEED();
  Random random(seed);
  for (int repeat = 0; repeat < 20000; ++repeat) {
    std::int64_t slice[5];
    for (std::int64_t& number : slice) {
      number = random.pick<std::int64_t>(
          {INT64_MIN, INT64_MAX, -1, 0, 7, 1 << 30, static_cast<std::int64_t>(random.bits())});
    }
    if (random.chance(0.5)) slice[4] = random.between(0, 3);
    const Band band = slice_band(slice, 30, 40, 35);
    for (std::int64_t i = 0; i < 30; ++i) {
      const KeyRange keys = visible_keys(band, i);
      if (keys.begin >= keys.end) continue;
      ASSERT_GE(keys.begin, 0);
      ASSERT_LE(keys.end, 35);
    }
    ASSERT_TRUE(band.row_begin >= 0 && band.row_end <= 30);
  }
}

}  // namespace
}  // namespace tilewise::math
