// Which rows and columns of the products the threads of the fp32 backward kernels have, and that
// their loads and stores of shared memory have no bank conflicts.
#include "cuda/backward/fp32/layout.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace tilewise::cuda::backward::fp32 {
namespace {

template <class Visit, int... kRow>
void for_each_config(const Visit& visit, std::integer_sequence<int, kRow...>) {
  (visit(std::integral_constant<int, kRow>{}), ...);
}
template <class Visit>
void for_each_config(const Visit& visit) {
  for_each_config(visit, std::make_integer_sequence<int, kKernelRows>());
}

// The elements of a product that its threads have, by runs or along the summed dimension.
template <class Tile, class Row, class Column>
std::set<std::pair<int, int>> elements_of(int threads, const Row& row, const Column& column) {
  std::set<std::pair<int, int>> seen;
  for (int thread = 0; thread < threads; ++thread) {
    for (int i = 0; i < Tile::kRows; ++i) {
      for (int c = 0; c < Tile::kColumns; ++c)
        EXPECT_TRUE(seen.insert({row(thread, i), column(thread, c)}).second);
    }
  }
  return seen;
}

template <class Tile>
constexpr auto kRowOf = [](int thread, int i) { return Tile::row(thread, i); };
template <class Tile>
constexpr auto kRowOfRun =
    [](int thread, int i) { return Tile::row_run(thread, i / kVector) + i % kVector; };
template <class Tile>
constexpr auto kColumnOfRun =
    [](int thread, int c) { return Tile::column_run(thread, c / kVector) + c % kVector; };

TEST(Fp32BackwardLayout, ThreadsShareEveryProduct) {
  for_each_config([](auto index) {
    constexpr KernelConfig kConfig = kKernels[decltype(index)::value].config();
    using Scores = ScoreTile<kConfig>;
    using Keys = KeyGradient<kConfig>;
    using Queries = QueryGradient<kConfig>;
    const int threads = kConfig.threads();
    const auto scores = elements_of<Scores>(threads, kRowOf<Scores>, [](int thread, int c) {
      return Scores::across(thread) + c * kAcross;
    });
    EXPECT_EQ(scores.size(), static_cast<std::size_t>(kConfig.q_tile * kConfig.k_tile));
    EXPECT_EQ(*scores.rbegin(), std::make_pair(kConfig.q_tile - 1, kConfig.k_tile - 1));
    const auto keys = elements_of<Keys>(threads, kRowOfRun<Keys>, kColumnOfRun<Keys>);
    EXPECT_EQ(keys.size(), static_cast<std::size_t>(kConfig.k_tile * kConfig.columns));
    EXPECT_EQ(*keys.rbegin(), std::make_pair(kConfig.k_tile - 1, kConfig.columns - 1));
    const auto queries = elements_of<Queries>(threads, kRowOf<Queries>, kColumnOfRun<Queries>);
    const int part = kConfig.columns / kQueryParts<kConfig>;
    EXPECT_EQ(queries.size(), static_cast<std::size_t>(kConfig.q_tile * part));
    EXPECT_EQ(*queries.rbegin(), std::make_pair(kConfig.q_tile - 1, part - 1));
  });
}

TEST(Fp32BackwardLayout, KeysOfAThreadFollowEachOther) {
  for_each_config([](auto index) {
    constexpr KernelConfig kConfig = kKernels[decltype(index)::value].config();
    using Scores = ScoreTile<kConfig>;
    const int keys = kConfig.thread_keys();
    EXPECT_EQ(Scores::kColumns, keys);
    for (int thread = 0; thread < kConfig.threads(); ++thread) {
      for (int n = 0; n < keys; ++n) {
        EXPECT_EQ(cuda::fp32::key_at(Scores::across(thread) + n * kAcross, keys),
                  Scores::across(thread) * keys + n);
      }
    }
  });
}

// Counts how many of the 8 groups of 4 banks the 16-byte loads of half a warp use, and how many
// different addresses they have.
template <class Address>
void expect_no_conflict(int first, const Address& address) {
  std::set<int> addresses, groups;
  for (int lane = first; lane < first + 16; ++lane) {
    addresses.insert(address(lane));
    groups.insert(address(lane) / kVector % 8);
    EXPECT_EQ(address(lane) % kVector, 0);
  }
  EXPECT_EQ(addresses.size(), groups.size());
}

TEST(Fp32BackwardLayout, LoadsOfHalfAWarpHaveNoBankConflicts) {
  for_each_config([](auto index) {
    constexpr KernelConfig kConfig = kKernels[decltype(index)::value].config();
    using Scores = ScoreTile<kConfig>;
    using Keys = KeyGradient<kConfig>;
    using Queries = QueryGradient<kConfig>;
    const int row = kConfig.row();
    const int score_row = kConfig.score_row();
    for (int first = 0; first < kConfig.threads(); first += 16) {
      expect_no_conflict(first, [&](int t) { return Scores::row(t, 0) * row; });
      expect_no_conflict(first, [&](int t) { return Scores::across(t) * row; });
      expect_no_conflict(first, [&](int t) { return Keys::row_run(t, 0); });
      expect_no_conflict(first, [&](int t) { return Keys::column_run(t, 0); });
      expect_no_conflict(first, [&](int t) { return Queries::row(t, 0) * score_row; });
      expect_no_conflict(first, [&](int t) { return Queries::column_run(t, 0); });
    }
  });
}

TEST(Fp32BackwardLayout, StoresOfPHaveNoBankConflicts) {
  for_each_config([](auto index) {
    constexpr KernelConfig kConfig = kKernels[decltype(index)::value].config();
    using Scores = ScoreTile<kConfig>;
    for (int first = 0; first < kConfig.threads(); first += 32) {
      std::set<int> banks;
      for (int thread = first; thread < first + 32; ++thread)
        banks.insert((Scores::row(thread, 0) * kConfig.score_row() + Scores::across(thread)) % 32);
      EXPECT_EQ(banks.size(), 32u);
    }
  });
}

}  // namespace
}  // namespace tilewise::cuda::backward::fp32
