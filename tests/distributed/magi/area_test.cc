// Areas of lists of slices against counting every pair.
#include "distributed/magi/area.h"

#include <gtest/gtest.h>

#include "distributed/magi/masks.h"
#include "support/seed.h"

namespace tilewise::tests {
namespace {

using distributed::magi::chunk_areas;
using distributed::magi::total_area;
using verify::Random;

void expect_areas(const SliceList& list, const std::vector<std::int64_t>& bounds) {
  BooleanMask cells = list.cells();
  const Mask mask = list.mask();
  const std::vector<std::int64_t> areas = chunk_areas(mask, bounds);
  // An area counts all heads if a slice names one, else one head.
  const std::int64_t share = list.heads / mask.heads;
  ASSERT_EQ(areas.size() + 1, bounds.size());
  for (std::size_t c = 0; c < areas.size(); ++c) {
    ASSERT_EQ(areas[c] * share, cells.area(bounds[c], bounds[c + 1]))
        << "chunk " << c << " from " << bounds[c] << " of " << list.text();
  }
}

TEST(MagiArea, ChunksOfRandomListsAreCountedExactly) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  for (int step = 0; step < 6000; ++step) {
    const SliceList list = random_slices(random, step % 3 == 0 ? 40 : 6, 26);
    std::vector<std::int64_t> bounds = {0};
    while (bounds.back() < list.q_len) {
      bounds.push_back(std::min(list.q_len, bounds.back() + random.between(0, 7)));
    }
    ASSERT_NO_FATAL_FAILURE(expect_areas(list, bounds)) << "step " << step;
  }
}

// Long diagonals that cross the edges of rectangles: most swaps of the sweep.
TEST(MagiArea, CrossingDiagonalsAreCountedExactly) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed() + 1);
  for (int step = 0; step < 40; ++step) {
    const SliceList list = random_slices(random, 60, 160);
    ASSERT_NO_FATAL_FAILURE(expect_areas(list, {0, list.q_len})) << "step " << step;
  }
}

TEST(MagiArea, LargeMasksHaveTheAreasOfTheirFormulas) {
  const std::int64_t n = 1 << 30;
  EXPECT_EQ(total_area(SliceList{n, n, 1, {{0, n, 0, n, 0, -1}}}.mask()), n * n);
  EXPECT_EQ(total_area(SliceList{n, n, 1, {{0, n, 0, n, 1, -1}}}.mask()), n * (n + 1) / 2);
  // A window of 1000 keys back, and twice the same slice.
  const Slice head = {0, 1000, 0, 1000, 1, -1};
  const Slice band = {1000, n, 0, n, 3, -1};
  EXPECT_EQ(total_area(SliceList{n, n, 1, {head, band, band, head}}.mask()),
            1000 * 1001 / 2 + (n - 1000) * 1001);
}

}  // namespace
}  // namespace tilewise::tests
