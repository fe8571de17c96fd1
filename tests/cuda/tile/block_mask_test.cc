// The order in which the key tiles of a block mask are visited, and the numbers of their bits.
#include "cuda/tile/block_mask.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "support/seed.h"

namespace tilewise::cuda::tile {
namespace {

// A query tile of random words, some of them empty.
struct QueryTile {
  std::vector<BlockMaskWord> words;
  std::int32_t start_key = 0;
  std::int32_t count = 0;
  std::int32_t last_word = -1;
};

QueryTile random_tile(std::mt19937_64& random, std::int32_t capacity) {
  QueryTile tile;
  std::int32_t first_bits = 0;
  const auto draw = [&] { return static_cast<std::uint32_t>(random()); };
  const std::int32_t count = 1 + static_cast<std::int32_t>(random() % 6);
  for (std::int32_t w = 0; w < count; ++w) {
    const std::uint32_t visited = random() % 3 == 0 ? 0 : draw() & draw();
    const std::uint32_t partial = visited & draw();
    const std::uint32_t asked = partial | (draw() & draw());
    tile.words.push_back(
        {visited, partial, asked, first_bits, capacity - first_bits, tile.last_word});
    first_bits += bit_count(asked);
    tile.count += bit_count(visited);
    if (visited == 0) continue;
    tile.last_word = w;
    tile.start_key = w * kTilesOfWord + last_bit(visited);
  }
  return tile;
}

TEST(BlockMask, EveryVisitedTileComesOnce) {
  TILEWISE_TRACE_SEED();
  std::mt19937_64 random(tests::run_seed());
  for (int step = 0; step < 2000; ++step) {
    const std::int32_t capacity = step % 2 == 0 ? 1000 : 20;
    QueryTile tile = random_tile(random, capacity);
    if (tile.count == 0) continue;
    // Any visited tile may be the first.
    std::vector<std::int32_t> left;
    for (std::size_t w = tile.words.size(); w-- > 0;) {
      for (std::int32_t bit = kTilesOfWord - 1; bit >= 0; --bit) {
        if ((tile.words[w].visited >> bit & 1) != 0)
          left.push_back(static_cast<std::int32_t>(w) * kTilesOfWord + bit);
      }
    }
    tile.start_key = left[random() % left.size()];
    std::erase(left, tile.start_key);
    const auto expected_bits = [&](std::int32_t key) {
      std::int32_t number = 0;  // of asked tiles before it
      for (std::int32_t before = 0; before < key; ++before) {
        number += static_cast<std::int32_t>(
            tile.words[static_cast<std::size_t>(before / kTilesOfWord)].asked >>
                before % kTilesOfWord &
            1);
      }
      const BlockMaskWord& word = tile.words[static_cast<std::size_t>(key / kTilesOfWord)];
      if ((word.partial >> key % kTilesOfWord & 1) == 0) return kFullTile;
      return number < capacity ? number : kSearchedTile;
    };
    const BlockMaskWord& start =
        tile.words[static_cast<std::size_t>(tile.start_key / kTilesOfWord)];
    KeyTileWalk walk;
    walk.begin(bits_of(start, tile.start_key % kTilesOfWord), tile.last_word,
               tile.words[static_cast<std::size_t>(tile.last_word)].visited);
    EXPECT_EQ(walk.bits(), expected_bits(tile.start_key));
    for (const std::int32_t key : left) {
      ASSERT_EQ(walk.next(tile.words.data(), tile.start_key), key);
      EXPECT_EQ(walk.bits(), expected_bits(key));
    }
  }
}

TEST(BlockMask, AllColumnsOfALaneHaveABitEach) {
  EXPECT_EQ(all_columns(128), ~0u);
  EXPECT_EQ(all_columns(64), 0xFFFFu);
}

}  // namespace
}  // namespace tilewise::cuda::tile
