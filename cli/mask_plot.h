// A mask and its tiles as SVG: queries down, keys across.
#pragma once

#include <string>
#include <vector>

#include "mask_tiles.h"

namespace tilewise::cli {

struct MaskPicture {
  const distributed::magi::Mask& mask;
  TileShape tile;
  std::int64_t head;  // counts and runs are those of this head
  TileCounts counts;
  std::vector<TileRun> runs;
};

// Returns the picture with title, axes and legend, 800 pixels wide. Throws UsageError if it would
// have too many parts.
std::string mask_svg(const MaskPicture& picture);

// Returns the mask alone, 200 pixels wide.
std::string bare_mask_svg(const MaskPicture& picture);

}  // namespace tilewise::cli
