// Bands and slices: trimming and cutting keep exactly what is visible; bad lists are refused.
#include "distributed/magi/mask.h"

#include <gtest/gtest.h>

#include "distributed/magi/masks.h"
#include "problem/status.h"
#include "support/seed.h"

namespace tilewise::tests {
namespace {

using distributed::magi::append_slices;
using distributed::magi::crop;
using distributed::magi::MaskBand;
using distributed::magi::Range;
using distributed::magi::trim;
using verify::Random;

Range random_part(Random& random, std::int64_t length) {
  const std::int64_t begin = random.between(0, length);
  return {begin, random.between(begin, length)};
}

// A slice cut by any rectangle is at most three slices in the coordinates of the rectangle.
TEST(MagiMask, ARectangleCutsASliceIntoAtMostThreeSlices) {
  TILEWISE_TRACE_SEED();
  Random random(run_seed());
  int most = 0;
  for (int step = 0; step < 20000; ++step) {
    SliceList list = {random.between(1, 14), random.between(1, 14), 1, {}};
    list.slices.push_back({random.between(0, list.q_len / 2), list.q_len,
                           random.between(0, list.k_len / 2), list.k_len, random.between(0, 3),
                           -1});
    const Range rows = random_part(random, list.q_len);
    const Range keys = random_part(random, list.k_len);
    std::vector<Slice> cut;
    for (const MaskBand& entry : list.mask().bands) {
      MaskBand part = {crop(entry.band, rows, keys), -1};
      if (trim(part.band)) append_slices(part, -rows.begin, -keys.begin, cut);
    }
    BooleanMask whole = list.cells();
    BooleanMask part(1, rows.end - rows.begin, keys.end - keys.begin);
    part.show(cut);
    for (std::int64_t q = rows.begin; q < rows.end; ++q) {
      for (std::int64_t k = keys.begin; k < keys.end; ++k) {
        ASSERT_EQ(part.at(0, q - rows.begin, k - keys.begin), whole.at(0, q, k))
            << list.text() << " rows " << rows.begin << ".." << rows.end << " keys " << keys.begin
            << ".." << keys.end;
      }
    }
    ASSERT_LE(cut.size(), 3u);
    most = std::max(most, static_cast<int>(cut.size()));
  }
  EXPECT_EQ(most, 3);
}

// Every row of a trimmed band sees a key, and every key is seen by a row.
TEST(MagiMask, TrimmedBandsHaveNoEmptyRowAndNoUnseenKey) {
  Random random(run_seed());
  for (int step = 0; step < 5000; ++step) {
    const SliceList list = random_slices(random, 3, 14);
    for (const MaskBand& entry : list.mask().bands) {
      std::vector<char> seen(static_cast<std::size_t>(list.k_len));
      for (std::int64_t row = entry.band.row_begin; row < entry.band.row_end; ++row) {
        const Range keys = math::visible_keys(entry.band, row);
        ASSERT_LT(keys.begin, keys.end) << list.text();
        for (std::int64_t k = keys.begin; k < keys.end; ++k) seen[static_cast<std::size_t>(k)] = 1;
      }
      for (std::int64_t k = entry.band.key_begin; k < entry.band.key_end; ++k) {
        ASSERT_TRUE(seen[static_cast<std::size_t>(k)]) << list.text();
      }
    }
  }
}

TEST(MagiMask, DocumentsSeeWhatTheirWindowShows) {
  Random random(run_seed());
  for (int step = 0; step < 2000; ++step) {
    std::vector<std::int64_t> q_starts = {0};
    std::vector<std::int64_t> k_starts = {0};
    for (std::int64_t b = random.between(0, 4); b > 0; --b) {
      q_starts.push_back(q_starts.back() + random.between(0, 8));
      k_starts.push_back(k_starts.back() + random.between(0, 8));
    }
    const distributed::magi::WindowOptions window = {random.between(-1, 6), random.between(-1, 6),
                                                     random.chance(0.5)};
    Mask mask;
    ASSERT_EQ(distributed::magi::mask_of_documents(q_starts, k_starts, window, &mask), TILEWISE_OK);
    std::vector<Slice> slices;
    for (const MaskBand& entry : mask.bands) append_slices(entry, 0, 0, slices);
    BooleanMask shown(1, q_starts.back(), k_starts.back());
    shown.show(slices);
    for (std::size_t b = 0; b + 1 < q_starts.size(); ++b) {
      for (std::int64_t q = q_starts[b]; q < q_starts[b + 1]; ++q) {
        for (std::int64_t k = 0; k < k_starts.back(); ++k) {
          const std::int64_t d =
              window.top_left ? 0
                              : (k_starts[b + 1] - k_starts[b]) - (q_starts[b + 1] - q_starts[b]);
          const std::int64_t diagonal = q - q_starts[b] + d;
          const std::int64_t key = k - k_starts[b];
          const bool inside = k >= k_starts[b] && k < k_starts[b + 1];
          const bool left = window.left < 0 || key >= diagonal - window.left;
          const bool right = window.right < 0 || key <= diagonal + window.right;
          ASSERT_EQ(shown.at(0, q, k) != 0, inside && left && right) << step;
        }
      }
    }
  }
}

void expect_refused(const SliceList& list, const std::vector<std::string>& words) {
  Mask mask;
  EXPECT_EQ(
      distributed::magi::mask_of_slices(list.slices, list.q_len, list.k_len, list.heads, &mask),
      TILEWISE_INVALID_ARGUMENT)
      << list.text();
  for (const std::string& word : words) {
    EXPECT_NE(std::string(problem::message()).find(word), std::string::npos)
        << problem::message() << " lacks " << word;
  }
}

TEST(MagiMask, BadListsAreRefusedByName) {
  expect_refused({4, 4, 1, {{0, 4, 0, 4, 0, -1}, {0, 5, 0, 4, 0, -1}}},
                 {"slices[1]", "q0..q1", "0..5", "0..4"});
  expect_refused({4, 4, 1, {{0, 4, 3, 2, 0, -1}}}, {"slices[0]", "k0..k1", "3..2"});
  expect_refused({4, 4, 1, {{0, 4, -1, 2, 0, -1}}}, {"k0..k1", "-1..2"});
  expect_refused({4, 4, 1, {{0, 4, 0, 4, 4, -1}}}, {"kind", "4", "0 to 3"});
  expect_refused({4, 4, 2, {{0, 4, 0, 4, 0, 2}}}, {"head", "2", "H = 2"});
  expect_refused({4, 4, 2, {{0, 4, 0, 4, 0, -2}}}, {"head", "-2"});
  expect_refused({-1, 4, 1, {}}, {"q_len", "-1"});
  expect_refused({4, -4, 1, {}}, {"k_len", "-4"});
  expect_refused({std::int64_t{1} << 31, std::int64_t{1} << 31, 1, {}}, {"2^61"});
  Mask mask;
  const std::int64_t starts[] = {0, 4, 3};
  const std::int64_t late[] = {1, 4, 4};
  const std::int64_t good[] = {0, 4, 4};
  EXPECT_EQ(distributed::magi::mask_of_documents(starts, good, {}, &mask),
            TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(problem::message(), "cu_seqlens_q[2]: is 3, must be at least 4");
  EXPECT_EQ(distributed::magi::mask_of_documents(good, late, {}, &mask), TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(problem::message(), "cu_seqlens_k[0]: is 1, must be 0");
  EXPECT_EQ(distributed::magi::mask_of_documents(good, {}, {}, &mask), TILEWISE_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace tilewise::tests
