// What a list of slices costs in the Hopper kernels: bands that are read, and key tiles whose bits
// had no room, for which warps look slices up. (band_reads_test.cc has the other kernels.)
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "cuda/emulation/band_read_count.h"
#include "cuda/emulation/slow_path_counts.h"
#include "registry/support.h"
#include "verify/judge.h"

namespace tilewise::tests {
namespace {

using cuda::tile::SlowPath;

struct Cost {
  std::int64_t band_reads;
  std::int64_t searched;  // key tiles, counted by each warp
};

Cost cost_of(const Case& c) {
  verify::Judge judge(c);
  emulation::band_reads = 0;
  std::ranges::fill(emulation::slow_path_counts, 0);
  const verify::Verdict verdict = judge.judge("cuda_sm90");
  EXPECT_EQ(verdict.result, verify::Verdict::kPassed) << verdict.text;
  return {emulation::band_reads, emulation::slow_path_count(SlowPath::kSearchedBands)};
}

TEST(BlockMask, ReadsOfBandsGrowWithTheRows) {
  const auto cost = [](std::int64_t rows) {
    Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, rows, rows, 1, 1, 16});
    for (std::int64_t row = 0; row < rows; row += 8)
      c.slices.push_back({row, row + 8, row, std::min(row + 40, rows), 0, -1});
    return cost_of(c);
  };
  const Cost few = cost(1024);
  EXPECT_GT(few.band_reads, 0);
  EXPECT_EQ(few.searched, 0);
  const Cost many = cost(4096);
  EXPECT_LE(many.band_reads, 5 * few.band_reads);
  EXPECT_EQ(many.searched, 0);
}

// 40 key tiles of each head are partial, and 16 have room.
TEST(BlockMask, KeyTilesAreSearchedOnlyWhereThereIsNoRoom) {
  constexpr std::int64_t kKeyTiles = 40;
  constexpr std::int64_t kRoom = 16;
  constexpr std::int64_t kHeads = 2;
  constexpr std::int64_t kWarps = 8;
  Case c = make_case(Operation::kForward, TILEWISE_BF16, {1, 80, kKeyTiles * 128, kHeads, 1, 128});
  c.slice_heads = true;
  for (std::int64_t key = 0; key < c.k_len; key += 64)
    c.slices.push_back({0, 80, key, key + 1, 0, key % 128 == 0 ? 0 : 1});
  const std::int64_t searched = cost_of(c).searched;
  EXPECT_GT(searched, 0);
  EXPECT_LE(searched, kHeads * (kKeyTiles - kRoom) * kWarps);
  c.slices.clear();
  c.slice_heads = false;
  c.mask = {true, 4, {false, false, true, true}};  // every tile has room
  EXPECT_EQ(cost_of(c).searched, 0);
}

// The same for gradients, whose lists belong to tiles of 128 keys: of each head 40 tiles of queries
// are partial, and 16 have room.
TEST(BlockMask, QueryTilesAreSearchedOnlyWhereThereIsNoRoom) {
  constexpr std::int64_t kQueryTiles = 40;
  constexpr std::int64_t kRoom = 16;
  constexpr std::int64_t kHeads = 2;
  constexpr std::int64_t kWarps = 8;
  Case c =
      make_case(Operation::kBackward, TILEWISE_BF16, {1, kQueryTiles * 64, 80, kHeads, 1, 128});
  c.slice_heads = true;
  for (std::int64_t row = 0; row < c.q_len; row += 32)
    c.slices.push_back({row, row + 1, 0, 80, 0, row % 64 == 0 ? 0 : 1});
  const std::int64_t searched = cost_of(c).searched;
  EXPECT_GT(searched, 0);
  EXPECT_LE(searched, kHeads * (kQueryTiles - kRoom) * kWarps);
  c.slices.clear();
  c.slice_heads = false;
  c.mask = {true, 4, {false, false, true, true}};  // every tile has room
  EXPECT_EQ(cost_of(c).searched, 0);
}

}  // namespace
}  // namespace tilewise::tests
