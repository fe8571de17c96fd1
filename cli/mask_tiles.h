// The tiles that a mask leaves empty, full or partial, and the area of each class.
#pragma once

#include <span>
#include <vector>

#include "distributed/magi/mask.h"

namespace tilewise::cli {

struct TileShape {
  std::int64_t rows = 0;  // Br
  std::int64_t keys = 0;  // Bc
};

// Tiles [begin, end) of a row of tiles, which are of one class. Rows and tiles are counted from 0.
struct TileRun {
  std::int64_t row;
  std::int64_t begin;
  std::int64_t end;
  math::TileClass kind;
};

// Tiles and pairs (query, key) of one head, or the sums over heads.
struct TileCounts {
  std::int64_t full_tiles = 0;
  std::int64_t partial_tiles = 0;
  std::int64_t tiles = 0;
  std::int64_t visible_pairs = 0;
  std::int64_t visited_pairs = 0;  // in tiles that are not empty
  std::int64_t pairs = 0;

  void add(const TileCounts& other);
};

// Returns the bands of a head: its own and those of all heads.
std::vector<math::Band> bands_of_head(const distributed::magi::Mask& mask, std::int64_t head);

// Counts the tiles of one head. A tile is full if every pair of it is visible, through whichever
// bands. Appends the runs of full and partial tiles to `runs` if it is not nullptr.
TileCounts count_tiles(const distributed::magi::Mask& mask, std::int64_t head,
                       const TileShape& tile, std::vector<TileRun>* runs);

}  // namespace tilewise::cli
