#include "problem/band_index.h"

#include <algorithm>

namespace tilewise::problem {
namespace {

using math::KeyRange;

// Bands that begin in the same tile of the leading side are sorted by the other side.
constexpr std::int64_t kTile = 64;

KeyRange rows_of(const math::Band& band) { return {band.row_begin, band.row_end}; }
KeyRange keys_of(const math::Band& band) {
  return math::tile_keys(band, band.row_begin, band.row_end);
}

// Returns whether band a comes before band b in the index.
bool is_before(const IndexedBand& a, const IndexedBand& b, SearchedBy searched) {
  if (a.head != b.head) return a.head < b.head;
  const KeyRange rows[2] = {rows_of(a.band), rows_of(b.band)};
  const KeyRange keys[2] = {keys_of(a.band), keys_of(b.band)};
  const KeyRange* const lead = searched == SearchedBy::kRows ? rows : keys;
  const KeyRange* const other = searched == SearchedBy::kRows ? keys : rows;
  if (lead[0].begin / kTile != lead[1].begin / kTile) return lead[0].begin < lead[1].begin;
  if (other[0].begin != other[1].begin) return other[0].begin < other[1].begin;
  return lead[0].begin < lead[1].begin;
}

KeyRange hull(const KeyRange& a, const KeyRange& b) {
  return {math::min(a.begin, b.begin), math::max(a.end, b.end)};
}

BandBox hull(const BandBox& a, const BandBox& b) {
  return {hull(a.rows, b.rows), hull(a.keys, b.keys), hull(a.heads, b.heads)};
}

// Fills in the boxes, from the leaves to the root.
void build_boxes(BandIndex& index) {
  constexpr KeyRange kNothing = {INT64_MAX, INT64_MIN};
  for (std::int64_t leaf = 0; leaf < index.leaves; ++leaf) {
    BandBox box = {kNothing, kNothing, kNothing};
    const std::int64_t first = leaf * BandIndex::kBandsOfLeaf;
    const std::int64_t end = math::min(first + BandIndex::kBandsOfLeaf, index.count);
    for (std::int64_t i = first; i < end; ++i) {
      const IndexedBand& own = index.bands[i];
      box = hull(box, {rows_of(own.band), keys_of(own.band), {own.head, own.head + 1}});
    }
    index.boxes[index.leaves + leaf] = box;
  }
  for (std::int64_t node = index.leaves - 1; node > 0; --node)
    index.boxes[node] = hull(index.boxes[2 * node], index.boxes[2 * node + 1]);
}

}  // namespace

BandIndex take_band_index(const Problem& problem, Arena& arena) {
  BandIndex index = {};
  if (!problem.slices.present()) return index;
  constexpr std::int64_t kOfLeaf = BandIndex::kBandsOfLeaf;
  index.bands = arena.take<IndexedBand>(problem.slices.count);
  for (index.leaves = 1; index.leaves * kOfLeaf < problem.slices.count;) index.leaves *= 2;
  index.boxes = arena.take<BandBox>(2 * index.leaves);
  return index;
}

void build_band_index(const Problem& problem, SearchedBy searched, BandIndex& index) {
  if (!problem.slices.present()) return;
  index.count = 0;
  for (std::int64_t s = 0; s < problem.slices.count; ++s) {
    const std::int64_t head = problem.slices.columns == 6 ? problem.slices.at(s, 5) : -1;
    if (head < -1 || head >= problem.heads) continue;
    std::int64_t slice[5];
    for (std::int64_t c = 0; c < 5; ++c) slice[c] = problem.slices.at(s, c);
    const math::Band band = math::slice_band(slice, problem.q_rows, problem.k_rows, problem.k_rows);
    const KeyRange keys = keys_of(band);
    if (keys.begin < keys.end) index.bands[index.count++] = {band, head};
  }
  const auto before = [&](const IndexedBand& a, const IndexedBand& b) {
    return is_before(a, b, searched);
  };
  IndexedBand* const end = index.bands + index.count;
  if (!std::is_sorted(index.bands, end, before)) std::sort(index.bands, end, before);
  build_boxes(index);
}

}  // namespace tilewise::problem
