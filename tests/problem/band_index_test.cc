// The index of slices finds what a search of the whole list finds, and reads few others.
#include "problem/band_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "verify/random.h"

namespace tilewise::tests {
namespace {

using math::KeyRange;
using problem::BandIndex;
using problem::IndexedBand;
using problem::SearchedBy;
using verify::Random;
using Slice = std::array<std::int64_t, 6>;

constexpr std::int64_t kHeads = 3;

// A list of slices and its index.
class Indexed {
 public:
  Indexed(const std::vector<Slice>& slices, std::int64_t rows, std::int64_t keys,
          SearchedBy searched) {
    problem_.heads = kHeads;
    problem_.q_rows = rows;
    problem_.k_rows = keys;
    problem_.slices = {slices.data(), TILEWISE_INT64, static_cast<std::int64_t>(slices.size()), 6,
                       6};
    problem::Arena measure(nullptr);
    problem::take_band_index(problem_, measure);
    memory_.resize(static_cast<std::size_t>(measure.bytes()), 0x5A);
    problem::Arena arena(memory_.data());
    index = problem::take_band_index(problem_, arena);
    problem::build_band_index(problem_, searched, index);
  }

  // The bands that a search reads.
  std::vector<IndexedBand> candidates(std::int64_t head, KeyRange rows, KeyRange keys) const {
    std::vector<IndexedBand> result;
    index.for_each_candidate(head, rows, keys,
                             [&](const IndexedBand& entry) { result.push_back(entry); });
    return result;
  }

  BandIndex index;

 private:
  problem::Problem problem_;
  std::vector<char> memory_;
};

bool shows(const math::Band& band, KeyRange rows, KeyRange keys) {
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const KeyRange seen = math::visible_keys(band, row);
    if (std::max(seen.begin, keys.begin) < std::min(seen.end, keys.end)) return true;
  }
  return false;
}

KeyRange random_range(Random& random, std::int64_t end) {
  const std::int64_t begin = random.between(0, end);
  return {begin, random.between(begin, std::min(end, begin + random.between(1, 40)))};
}

TEST(BandIndex, FindsEveryBandThatTouchesATile) {
  Random random(7);
  for (int step = 0; step < 300; ++step) {
    std::vector<Slice> slices;
    for (std::int64_t s = random.between(0, 120); s > 0; --s) {
      const KeyRange rows = random_range(random, 200);
      const KeyRange keys = random_range(random, 300);
      slices.push_back({rows.begin, rows.end, keys.begin, keys.end, random.between(-1, 4),
                        random.between(-2, kHeads)});
    }
    const Indexed indexed(slices, 200, 300, step % 2 == 0 ? SearchedBy::kRows : SearchedBy::kKeys);
    for (int search = 0; search < 20; ++search) {
      const std::int64_t head = random.between(0, kHeads - 1);
      const KeyRange rows = random_range(random, 200);
      const KeyRange keys = random_range(random, 300);
      const std::vector<IndexedBand> found = indexed.candidates(head, rows, keys);
      std::int64_t expected = 0;
      for (const Slice& slice : slices) {
        const math::Band band = math::slice_band(slice.data(), 200, 300, 300);
        expected += (slice[5] == -1 || slice[5] == head) && shows(band, rows, keys) ? 1 : 0;
      }
      const auto touching = std::ranges::count_if(found, [&](const IndexedBand& entry) {
        return (entry.head == -1 || entry.head == head) && shows(entry.band, rows, keys);
      });
      ASSERT_EQ(touching, expected);
    }
  }
}

// A tile reads the bands that touch it, and those that share a leaf with one of them.
TEST(BandIndex, ReadsFewBandsThatDoNotTouchTheTile) {
  constexpr std::int64_t kRows = 8000;
  constexpr std::int64_t kAhead = 64;  // keys of a row
  Random random(8);
  std::vector<Slice> slices;
  for (std::int64_t row = 0; row < kRows; ++row)
    slices.push_back({row, row + 1, row, row + kAhead, 0, -1});
  for (std::size_t s = slices.size() - 1; s > 0; --s)
    std::swap(slices[s],
              slices[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(s)))]);
  for (const SearchedBy searched : {SearchedBy::kRows, SearchedBy::kKeys}) {
    const Indexed indexed(slices, kRows, kRows + kAhead, searched);
    ASSERT_EQ(indexed.index.count, kRows);
    for (std::int64_t first = 0; first + 48 <= kRows; first += 48) {
      const auto of_rows = indexed.candidates(0, {first, first + 48}, {0, kRows + kAhead});
      EXPECT_LE(of_rows.size(), 48u + 64u + 2 * BandIndex::kBandsOfLeaf);
      const auto of_tile = indexed.candidates(0, {first, first + 48}, {first, first + 128});
      EXPECT_LE(of_tile.size(), 48u + 64u + 2 * BandIndex::kBandsOfLeaf);
    }
  }
}

}  // namespace
}  // namespace tilewise::tests
