// Bands in 32 bits against math/mask_rule.h: the class of a tile, and the mask bits of a row.
#include <gtest/gtest.h>

#include "cuda/tile/bands.h"
#include "cuda/tile/fragment.h"
#include "cuda/tile/mask_bits.h"
#include "math/mask_rule.h"
#include "verify/random.h"

namespace tilewise::cuda {
namespace {

math::Band random_band(verify::Random& random, std::int64_t rows, std::int64_t keys) {
  if (random.chance(0.4)) {
    const std::int64_t left = random.chance(0.5) ? -1 : random.between(0, keys);
    const std::int64_t right = random.chance(0.5) ? -1 : random.between(0, keys);
    return math::window_band(rows, keys, keys - rows, left, right);
  }
  const std::int64_t slice[] = {random.between(0, rows), random.between(0, rows),
                                random.between(0, keys), random.between(0, keys),
                                random.between(0, 4)};
  return math::slice_band(slice, rows, keys, random.between(0, keys));
}

TEST(Bands, AgreeWithTheMaskRule) {
  verify::Random random(5);
  for (int round = 0; round < 3000; ++round) {
    const std::int64_t rows = random.between(1, 90);
    const std::int64_t keys = random.between(0, 150);
    const math::Band wide = random_band(random, rows, keys);
    const tile::Band band = tile::narrow_band(wide, -1);
    const std::int32_t first = static_cast<std::int32_t>(random.between(0, rows - 1));
    const std::int32_t last = static_cast<std::int32_t>(random.between(first, rows - 1));
    const std::int32_t begin = static_cast<std::int32_t>(random.between(0, 140));
    const std::int32_t end = begin + 64;
    bool any = false;
    bool all = true;
    for (std::int32_t row = first; row <= last; ++row) {
      const math::KeyRange range = math::visible_keys(wide, row);
      for (std::int32_t key = begin; key < end; ++key) {
        const bool visible = key >= range.begin && key < range.end;
        any |= visible;
        all &= visible;
        const std::int32_t lane = (key - begin) % 8 / 2;
        const std::int32_t bit = (key - begin) / 8 * 2 + (key - begin) % 2;
        const std::uint32_t bits =
            tile::visible_bits(band, row, tile::FragmentColumns{begin, tile::lane_column(lane)});
        ASSERT_EQ((bits >> bit & 1) != 0, visible) << "row " << row << ", key " << key;
        const std::int32_t run = begin + (key - begin) / 4 * 4;
        const std::uint32_t adjacent = tile::visible_bits(band, row, tile::AdjacentColumns{run, 4});
        ASSERT_EQ((adjacent >> (key - run) & 1) != 0, visible) << "row " << row << ", key " << key;
      }
    }
    const tile::TileClass tile_class = tile::classify(band, first, last, begin, end);
    // A tile without visible pairs may count as partial; one with visible pairs is never empty.
    EXPECT_FALSE(any && tile_class == tile::kEmpty);
    ASSERT_EQ(tile_class == tile::kFull, all);
    const tile::Range seen = tile::keys_of(band, first, last);
    if (any) {
      ASSERT_LT(seen.begin, end);
      ASSERT_GT(seen.end, begin);
    }
  }
}

TEST(Bands, ColumnsOfALaneAreCounted) {
  for (std::int32_t lane = 0; lane < 4; ++lane) {
    for (std::int32_t x = -5; x < 140; ++x) {
      std::int32_t count = 0;
      for (int r = 0; r < 64; ++r) {
        const bool before = tile::register_column(r) + tile::lane_column(lane) < x;
        if (tile::register_row(r) == 0 && before) ++count;
      }
      EXPECT_EQ(tile::columns_before(x, tile::lane_column(lane)), count);
    }
  }
  EXPECT_EQ(tile::low_bits(0), 0u);
  EXPECT_EQ(tile::low_bits(3), 7u);
  EXPECT_EQ(tile::low_bits(32), ~0u);
}

}  // namespace
}  // namespace tilewise::cuda
