// The device's lookup of a page, compared with that of problem::PageTable.
#include "cuda/tile/pages.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/seed.h"
#include "verify/random.h"

namespace tilewise::tests {
namespace {

TEST(Pages, KeysLieWhereThePageTableSays) {
  TILEWISE_TRACE_SEED();
  verify::Random random(run_seed());
  const std::int32_t kWild[] = {-1, INT32_MIN, INT32_MAX};
  for (const std::int64_t page_size : {1, 3, 16, 64, 256, 1000, 65537}) {
    constexpr std::int64_t kBatch = 3;
    constexpr std::int64_t kColumns = 7;
    std::vector<std::int32_t> entries;
    for (std::int64_t i = 0; i < kBatch * kColumns; ++i) {
      const bool wild = random.chance(0.2);
      entries.push_back(wild ? kWild[i % 3] : static_cast<std::int32_t>(random.between(0, 19)));
    }
    problem::Problem problem;
    problem.page_table = {entries.data(), kColumns, 1, kColumns, 20, page_size};
    problem.k_rows = kColumns * page_size;
    problem.k.batch = page_size * 48 + 8;
    problem.k.head = 0;
    problem.k.row = 48;
    const cuda::tile::Pages pages = cuda::tile::pages_of(problem);
    ASSERT_TRUE(pages.present());
    for (int draw = 0; draw < 200; ++draw) {
      const std::int64_t b = random.between(0, kBatch - 1);
      const std::int64_t key = random.between(0, problem.k_rows - 1);
      EXPECT_EQ(pages.offset(problem.k, b, static_cast<std::int32_t>(key)),
                problem.key_offset(problem.k, b, 0, key))
          << page_size << " " << b << " " << key;
      const std::uint32_t place = pages.place(b, static_cast<std::int32_t>(key));
      EXPECT_EQ(pages.offset(problem.k, place), problem.key_offset(problem.k, b, 0, key))
          << page_size << " " << b << " " << key;
    }
  }
}

TEST(Pages, PlacesHoldUpTo32Bits) {
  const auto fit = [](std::int64_t pages, std::int64_t page_size) {
    return cuda::tile::pages_fit_places({nullptr, 0, 0, 1, pages, page_size});
  };
  EXPECT_TRUE(fit(std::int64_t{1} << 32, 1));
  EXPECT_FALSE(fit((std::int64_t{1} << 32) + 1, 1));
  EXPECT_TRUE(fit(std::int64_t{1} << 24, 256));
  EXPECT_FALSE(fit((std::int64_t{1} << 24) + 1, 256));
  EXPECT_FALSE(fit(std::int64_t{1} << 24, 257));
  EXPECT_TRUE(fit(1, INT32_MAX));
}

TEST(Pages, ACacheWithoutPagesOrKeysHasNone) {
  problem::Problem problem;
  problem.k_rows = 5;
  EXPECT_FALSE(cuda::tile::pages_of(problem).present());
  problem.page_table.page_size = 16;
  problem.k_rows = 0;
  EXPECT_FALSE(cuda::tile::pages_of(problem).present());
}

}  // namespace
}  // namespace tilewise::tests
