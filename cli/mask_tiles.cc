#include "mask_tiles.h"

#include <algorithm>

#include "math/integer.h"

namespace tilewise::cli {
namespace {

using distributed::magi::Mask;
using distributed::magi::MaskBand;
using math::TileClass;

// The visible pairs of each tile of one row of tiles, added up key range by key range.
class TileRow {
 public:
  TileRow(std::int64_t k_len, std::int64_t tile_keys)
      : k_len_(k_len),
        tile_keys_(tile_keys),
        columns_((k_len + tile_keys - 1) / tile_keys),
        pairs_(static_cast<std::size_t>(columns_)),
        whole_(static_cast<std::size_t>(columns_) + 1) {}

  std::int64_t columns() const { return columns_; }
  std::int64_t keys(std::int64_t column) const {
    return std::min((column + 1) * tile_keys_, k_len_) - column * tile_keys_;
  }
  // The visible pairs, after sum_up().
  std::int64_t pairs(std::int64_t column) const { return pairs_[static_cast<std::size_t>(column)]; }

  void clear() {
    std::fill(pairs_.begin(), pairs_.end(), 0);
    std::fill(whole_.begin(), whole_.end(), 0);
  }
  void add(const math::KeyRange& seen) {
    const std::int64_t first = seen.begin / tile_keys_;
    const std::int64_t last = (seen.end - 1) / tile_keys_;
    if (first == last) {
      pairs_[static_cast<std::size_t>(first)] += seen.end - seen.begin;
      return;
    }
    pairs_[static_cast<std::size_t>(first)] += (first + 1) * tile_keys_ - seen.begin;
    pairs_[static_cast<std::size_t>(last)] += seen.end - last * tile_keys_;
    ++whole_[static_cast<std::size_t>(first + 1)];
    --whole_[static_cast<std::size_t>(last)];
  }
  void sum_up() {
    std::int64_t rows = 0;
    for (std::size_t column = 0; column < pairs_.size(); ++column) {
      rows += whole_[column];
      pairs_[column] += rows * keys(static_cast<std::int64_t>(column));
    }
  }

 private:
  std::int64_t k_len_;
  std::int64_t tile_keys_;
  std::int64_t columns_;
  std::vector<std::int64_t> pairs_;
  std::vector<std::int64_t> whole_;  // rows that see all of a tile: differences to the tile before
};

// Adds the union of what the bands show to a row.
void add_row(const std::vector<math::Band>& bands, std::int64_t row,
             std::vector<math::KeyRange>& scratch, TileRow& tiles) {
  scratch.clear();
  for (const math::Band& band : bands) {
    const math::KeyRange seen = math::visible_keys(band, row);
    if (seen.begin < seen.end) scratch.push_back(seen);
  }
  std::sort(scratch.begin(), scratch.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });
  std::int64_t reached = 0;
  for (const math::KeyRange& seen : scratch) {
    const math::KeyRange added = {std::max(seen.begin, reached), seen.end};
    if (added.begin >= added.end) continue;
    tiles.add(added);
    reached = added.end;
  }
}

TileClass class_of(std::int64_t visible, std::int64_t pairs) {
  if (visible == 0) return TileClass::kEmpty;
  return visible == pairs ? TileClass::kFull : TileClass::kPartial;
}

void append_runs(const TileRow& tiles, std::int64_t rows, std::int64_t tile_row,
                 std::vector<TileRun>& runs) {
  const auto kind = [&](std::int64_t column) {
    return class_of(tiles.pairs(column), rows * tiles.keys(column));
  };
  for (std::int64_t begin = 0, end = 0; begin < tiles.columns(); begin = end) {
    for (end = begin + 1; end < tiles.columns() && kind(end) == kind(begin);) ++end;
    if (kind(begin) != TileClass::kEmpty) runs.push_back({tile_row, begin, end, kind(begin)});
  }
}

}  // namespace

void TileCounts::add(const TileCounts& other) {
  full_tiles += other.full_tiles;
  partial_tiles += other.partial_tiles;
  tiles += other.tiles;
  visible_pairs += other.visible_pairs;
  visited_pairs += other.visited_pairs;
  pairs += other.pairs;
}

std::vector<math::Band> bands_of_head(const Mask& mask, std::int64_t head) {
  std::vector<math::Band> bands;
  for (const MaskBand& entry : mask.bands) {
    if (entry.head < 0 || entry.head == head) bands.push_back(entry.band);
  }
  std::sort(bands.begin(), bands.end(),
            [](const auto& a, const auto& b) { return a.row_begin < b.row_begin; });
  return bands;
}

TileCounts count_tiles(const Mask& mask, std::int64_t head, const TileShape& tile,
                       std::vector<TileRun>* runs) {
  const std::vector<math::Band> bands = bands_of_head(mask, head);
  TileRow tiles(mask.k_len, tile.keys);
  std::vector<math::Band> active;  // bands with rows among those of the present row of tiles
  std::vector<math::KeyRange> scratch;
  std::size_t next = 0;
  TileCounts counts;
  counts.pairs = mask.q_len * mask.k_len;
  for (std::int64_t begin = 0; begin < mask.q_len; begin += tile.rows) {
    const std::int64_t end = std::min(begin + tile.rows, mask.q_len);
    std::erase_if(active, [&](const math::Band& band) { return band.row_end <= begin; });
    while (next < bands.size() && bands[next].row_begin < end) active.push_back(bands[next++]);
    tiles.clear();
    for (std::int64_t row = begin; row < end; ++row) add_row(active, row, scratch, tiles);
    tiles.sum_up();
    for (std::int64_t column = 0; column < tiles.columns(); ++column) {
      const std::int64_t pairs = (end - begin) * tiles.keys(column);
      const TileClass kind = class_of(tiles.pairs(column), pairs);
      counts.visible_pairs += tiles.pairs(column);
      counts.full_tiles += kind == TileClass::kFull ? 1 : 0;
      counts.partial_tiles += kind == TileClass::kPartial ? 1 : 0;
      counts.visited_pairs += kind == TileClass::kEmpty ? 0 : pairs;
    }
    counts.tiles += tiles.columns();
    if (runs != nullptr) append_runs(tiles, end - begin, begin / tile.rows, *runs);
  }
  return counts;
}

}  // namespace tilewise::cli
