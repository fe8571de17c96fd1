// Windows in 32 bits against math/mask_rule.h, on every window of small sequences.
#include <gtest/gtest.h>

#include "cuda/tile/scheduler.h"
#include "math/integer.h"

namespace tilewise::cuda {
namespace {

struct Shape {
  std::int32_t q_len, k_len, diagonal, left, right;
};

template <class Function>
void for_each_shape(Function check) {
  for (const std::int32_t q_len : {1, 7, 20}) {
    for (const std::int32_t k_len : {0, 1, 9, 20, 33}) {
      for (const std::int32_t diagonal : {0, k_len - q_len}) {
        for (const std::int32_t left : {-1, 0, 3, 40, tile::kMaxLength}) {
          for (const std::int32_t right : {-1, 0, 2, 40, tile::kMaxLength}) {
            check(Shape{q_len, k_len, diagonal, left, right});
          }
        }
      }
    }
  }
}

TEST(WindowBand, IsTheBandOfTheMaskRule) {
  for_each_shape([](const Shape& s) {
    const tile::WindowBand edges = tile::window_band(s.k_len, s.diagonal, s.left, s.right);
    const math::Band band = math::window_band(s.q_len, s.k_len, s.diagonal, s.left, s.right);
    for (std::int32_t row = 0; row < s.q_len; ++row) {
      const math::KeyRange keys = math::visible_keys(band, row);
      for (std::int32_t key = 0; key < s.k_len; ++key) {
        const bool expected = key >= keys.begin && key < keys.end;
        ASSERT_EQ(key >= edges.begin(row) && key < edges.end(row), expected)
            << "Sq " << s.q_len << " Sk " << s.k_len << " d " << s.diagonal << " window " << s.left
            << "," << s.right << " row " << row << " key " << key;
      }
    }
  });
}

// The number of visible pairs of a tile, by the mask rule.
std::int32_t visible_pairs(const math::Band& band, std::int32_t row_begin, std::int32_t row_end,
                           std::int32_t key_begin, std::int32_t key_end) {
  std::int64_t pairs = 0;
  for (std::int32_t row = row_begin; row < row_end; ++row) {
    const math::KeyRange keys = math::visible_keys(band, row);
    const std::int64_t begin = math::max(math::max(keys.begin, 0), key_begin);
    pairs += math::max(math::min(keys.end, key_end) - begin, 0);
  }
  return static_cast<std::int32_t>(pairs);
}

TEST(WindowBand, TilesAreVisitedIfAnythingIsVisibleAndFullIfAllIs) {
  constexpr std::int32_t kRows = 4;
  constexpr std::int32_t kKeys = 8;
  for_each_shape([](const Shape& s) {
    const tile::WindowBand edges = tile::window_band(s.k_len, s.diagonal, s.left, s.right);
    const math::Band band = math::window_band(s.q_len, s.k_len, s.diagonal, s.left, s.right);
    for (std::int32_t row = 0; row < s.q_len; row += kRows) {
      const std::int32_t end = row + kRows < s.q_len ? row + kRows : s.q_len;
      const tile::TileRange range = tile::key_tiles(edges, row, end - 1, kKeys);
      for (std::int32_t tile = 0; tile * kKeys < s.k_len; ++tile) {
        const std::int32_t first = tile * kKeys;
        const std::int32_t pairs = visible_pairs(band, row, end, first, first + kKeys);
        const bool visited = tile >= range.begin && tile < range.end;
        EXPECT_TRUE(visited || pairs == 0);
        EXPECT_EQ(edges.full(row, end - 1, first, first + kKeys), pairs == kKeys * (end - row));
      }
    }
  });
}

}  // namespace
}  // namespace tilewise::cuda
