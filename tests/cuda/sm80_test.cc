// What of the kernels of every GPU since Ampere can be looked at without one: where operands lie in
// shared memory, what bands make of tiles, and which kernel serves.
#include <gtest/gtest.h>

#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "cuda/forward/sm80/kernel_table.h"
#include "cuda/ladder/kernel_table.h"
#include "cuda/tile/bands.h"
#include "cuda/tile/fragment.h"
#include "cuda/tile/ldmatrix_tile.h"
#include "cuda/tile/mask_bits.h"
#include "cuda/tile/pair_loads.h"
#include "math/mask_rule.h"
#include "verify/random.h"

namespace tilewise::cuda {
namespace {

// ---- tile/rows.h ----

template <int kColumns>
void expect_bijection() {
  constexpr int kRows = 24;
  using Tile = tile::LdmatrixTile<kColumns>;
  std::set<std::int32_t> seen;
  for (int row = 0; row < kRows; ++row) {
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      const std::int32_t place = Tile::place(row, chunk);
      EXPECT_EQ(place / Tile::kRowBytes, row);
      EXPECT_EQ(place % 16, 0);
      EXPECT_TRUE(seen.insert(place).second) << kColumns << ": " << row << ", " << chunk;
    }
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kRows * Tile::kChunks));
}

TEST(Rows, EachChunkHasItsPlace) {
  expect_bijection<32>();
  expect_bijection<64>();
  expect_bijection<96>();
  expect_bijection<128>();
  expect_bijection<192>();
  expect_bijection<256>();
}

template <int kColumns>
void expect_all_banks() {
  using Tile = tile::LdmatrixTile<kColumns>;
  for (int row = 0; row < 16; row += 8) {
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      std::set<std::int32_t> groups;
      for (int r = 0; r < 8; ++r) groups.insert(Tile::place(row + r, chunk) / 16 % 8);
      EXPECT_EQ(groups.size(), 8u) << kColumns << ": rows from " << row << ", chunk " << chunk;
    }
  }
}

// What ldmatrix reads at once.
TEST(Rows, AChunkOfEightRowsTouchesEveryGroupOfBanks) {
  expect_all_banks<32>();
  expect_all_banks<64>();
  expect_all_banks<96>();
  expect_all_banks<128>();
  expect_all_banks<192>();
  expect_all_banks<256>();
}

template <int kColumns>
void expect_steps() {
  using Tile = tile::LdmatrixTile<kColumns>;
  for (std::int32_t lane = 0; lane < 32; ++lane) {
    const std::pair<std::int32_t, std::int32_t> starts[] = {
        {tile::lane_row_first(lane), tile::lane_chunk_first(lane)},
        {tile::lane_row_second(lane), tile::lane_chunk_second(lane)}};
    for (const auto& [row, chunk] : starts) {
      const std::uint32_t start = 1024 + static_cast<std::uint32_t>(Tile::place(row, chunk));
      for (int step = 0; step < kColumns / 16; ++step) {
        for (int below = 0; below < 48; below += 16) {
          EXPECT_EQ(tile::step_address<kColumns>(start, step) +
                        static_cast<std::uint32_t>(below * Tile::kRowBytes),
                    1024u + static_cast<std::uint32_t>(Tile::place(row + below, chunk + 2 * step)))
              << kColumns << ": lane " << lane << ", step " << step;
        }
      }
      for (int further = 0; chunk == 0 && further < kColumns / 8; ++further) {
        EXPECT_EQ(tile::chunk_address<kColumns>(start, further),
                  1024u + static_cast<std::uint32_t>(Tile::place(row, further)))
            << kColumns << ": lane " << lane << ", chunk " << further;
      }
    }
  }
}

TEST(Rows, StepsFollowTheExchange) {
  expect_steps<64>();
  expect_steps<96>();
  expect_steps<128>();
  expect_steps<192>();
  expect_steps<256>();
}

// The four matrices of ldmatrix, as mma.sync wants them: of the first operand rows 0 to 7, then 8
// to 15, of chunk 0, then of chunk 1; of the second one chunk 0, then 1, of rows 0 to 7, then of
// rows 8 to 15.
TEST(Rows, LanesAddressTheMatricesOfOperands) {
  for (std::int32_t lane = 0; lane < 32; ++lane) {
    const std::int32_t matrix = lane / 8;
    EXPECT_EQ(tile::lane_row_first(lane), lane % 8 + matrix % 2 * 8);
    EXPECT_EQ(tile::lane_chunk_first(lane), matrix / 2);
    EXPECT_EQ(tile::lane_row_second(lane), lane % 8 + matrix / 2 * 8);
    EXPECT_EQ(tile::lane_chunk_second(lane), matrix % 2);
  }
}

// ---- tile/bands.h ----

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

TEST(Bands, SayWhatTheMaskRuleSays) {
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
    const tile::TileClass kind = tile::classify(band, first, last, begin, end);
    // A tile that holds nothing may be visited; one that holds something must be.
    EXPECT_FALSE(any && kind == tile::kEmpty);
    ASSERT_EQ(kind == tile::kFull, all);
    const tile::Range seen = tile::keys_of(band, first, last);
    if (any) {
      ASSERT_LT(seen.begin, end);
      ASSERT_GT(seen.end, begin);
    }
  }
}

TEST(Bands, ColumnsOfALane) {
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

// ---- sm80/config.h ----

// Every head dimension has a kernel in 99 KB; more memory never gives a narrower one.
TEST(Sm80Config, ARowServes) {
  for (std::int64_t columns = 1; columns <= sm80::kMaxColumns; ++columns) {
    for (const bool score_mod : {false, true}) {
      for (const std::int64_t bytes : {sm80::kSmall, sm80::kLarge, sm80::kHuge}) {
        for (const std::int64_t keys : {0, sm80::kLongKeys - 1, sm80::kLongKeys}) {
          const int row = sm80::tile_row(columns, score_mod, bytes, keys);
          ASSERT_GE(row, 0) << columns;
          EXPECT_GE(sm80::kKernels[row].columns, columns);
          EXPECT_LE(sm80::kKernels[row].shared_bytes, bytes);
          EXPECT_LE(sm80::kKernels[row].least_keys, keys);
          EXPECT_EQ(sm80::kKernels[row].score_mod, score_mod);
        }
      }
    }
  }
  EXPECT_EQ(sm80::tile_row(sm80::kMaxColumns + 1, false, sm80::kLarge, 1), -1);
  EXPECT_EQ(sm80::tile_row(64, false, sm80::kSmall - 1, 1), -1);
  // Eight warps for long sequences, four for short ones; pairs where there is room for what they
  // exchange.
  const auto row_of = [](std::int64_t bytes, std::int64_t keys) {
    return sm80::kKernels[sm80::tile_row(256, false, bytes, keys)];
  };
  for (const std::int64_t bytes : {sm80::kLarge, sm80::kHuge}) {
    EXPECT_EQ(row_of(bytes, sm80::kLongKeys).warps, 8);
    EXPECT_TRUE(row_of(bytes, sm80::kLongKeys).paired);
    EXPECT_EQ(row_of(bytes, sm80::kLongKeys - 1).warps, 4);
    EXPECT_EQ(row_of(bytes, sm80::kLongKeys - 1).paired, bytes == sm80::kHuge);
  }
}

// The ladder has the same rows for every device.
TEST(LadderConfig, ARowServes) {
  for (std::int64_t columns = 1; columns <= ladder::kMaxColumns; ++columns) {
    const int row = ladder::tile_row(columns, sm80::kSmall);
    ASSERT_GE(row, 0) << columns;
    EXPECT_GE(ladder::kFlash1Kernels[row].columns, columns);
    EXPECT_GE(ladder::kStandardKernels[row].columns, columns);
  }
  EXPECT_EQ(ladder::tile_row(ladder::kMaxColumns + 1, sm80::kLarge), -1);
  EXPECT_EQ(ladder::tile_row(64, sm80::kSmall - 1), -1);
}

// Two columns of a mask or a bias are read at once where both are aligned as one number would be.
TEST(Sm80, ColumnsAreReadInPairsWhereTheyLieSo) {
  alignas(16) static float numbers[4];
  const auto has = [](std::int32_t dtype, const void* data, std::int64_t batch, std::int64_t head,
                      std::int64_t row, std::int64_t column) {
    return tile::can_load_pairs({const_cast<void*>(data), dtype, batch, head, row, column});
  };
  const char* const bytes = reinterpret_cast<const char*>(numbers);
  EXPECT_TRUE(has(TILEWISE_FP32, numbers, 0, 4, 2, 1));
  EXPECT_TRUE(has(TILEWISE_BF16, bytes + 4, 64, 32, 8, 1));
  EXPECT_TRUE(has(TILEWISE_BOOL, bytes + 2, 64, 32, 8, 1));
  EXPECT_FALSE(has(TILEWISE_FP32, numbers + 1, 0, 4, 2, 1));
  EXPECT_FALSE(has(TILEWISE_FP16, bytes + 2, 64, 32, 8, 1));
  EXPECT_FALSE(has(TILEWISE_BOOL, bytes + 1, 64, 32, 8, 1));
  EXPECT_FALSE(has(TILEWISE_FP32, numbers, 0, 4, 3, 1));
  EXPECT_FALSE(has(TILEWISE_FP32, numbers, 0, 5, 2, 1));
  EXPECT_FALSE(has(TILEWISE_FP32, numbers, 7, 4, 2, 1));
  EXPECT_FALSE(has(TILEWISE_FP32, numbers, 0, 4, 2, 2));
  EXPECT_FALSE(has(TILEWISE_FP32, numbers, 0, 4, 2, 0));
  EXPECT_FALSE(tile::can_load_pairs({}));
}

}  // namespace
}  // namespace tilewise::cuda
