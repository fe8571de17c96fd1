// Swizzled tiles for ldmatrix: where chunks and operands lie, and that reads have no bank
// conflicts.
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "cuda/tile/ldmatrix_tile.h"

namespace tilewise::cuda {
namespace {

template <int kColumns>
void expect_bijection() {
  constexpr int kRows = 24;
  using Tile = tile::LdmatrixTile<kColumns>;
  std::set<std::int32_t> seen;
  for (int row = 0; row < kRows; ++row) {
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      const std::int32_t slot = Tile::place(row, chunk);
      EXPECT_EQ(slot / Tile::kRowBytes, row);
      EXPECT_EQ(slot % 16, 0);
      EXPECT_TRUE(seen.insert(slot).second) << kColumns << ": " << row << ", " << chunk;
    }
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kRows * Tile::kChunks));
}

TEST(LdmatrixTile, EachChunkHasItsOwnSlot) {
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

// A matrix of ldmatrix is one chunk of each of eight rows.
TEST(LdmatrixTile, AChunkOfEightRowsTouchesEveryGroupOfBanks) {
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

TEST(LdmatrixTile, StepAddressesFollowTheSwizzle) {
  expect_steps<64>();
  expect_steps<96>();
  expect_steps<128>();
  expect_steps<192>();
  expect_steps<256>();
}

// The order in which mma.sync takes the four matrices of ldmatrix. First operand: rows 0 to 7, then
// 8 to 15, of chunk 0, then of chunk 1. Second operand: chunk 0, then 1, of rows 0 to 7, then of
// rows 8 to 15.
TEST(LdmatrixTile, LanesAddressTheMatricesOfOperands) {
  for (std::int32_t lane = 0; lane < 32; ++lane) {
    const std::int32_t matrix = lane / 8;
    EXPECT_EQ(tile::lane_row_first(lane), lane % 8 + matrix % 2 * 8);
    EXPECT_EQ(tile::lane_chunk_first(lane), matrix / 2);
    EXPECT_EQ(tile::lane_row_second(lane), lane % 8 + matrix / 2 * 8);
    EXPECT_EQ(tile::lane_chunk_second(lane), matrix % 2);
  }
}

}  // namespace
}  // namespace tilewise::cuda
