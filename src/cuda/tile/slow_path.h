// The slow paths of a block: steps that finite inputs of ordinary size do not take.
#pragma once

namespace tilewise::cuda::tile {

enum class SlowPath {
  kSecondPass,     // a tile of queries is computed again, with smaller probs
  kScannedValues,  // V of a tile of queries is searched for large numbers
  kNonFiniteTile,  // a tile of keys with non-finite V may have masked keys
  kNonFinitePass,  // a block computes its gradients a second time
  kCarefulTile,    // a careful pass computes a tile of queries
  kSearchedBands,  // a warp looks slices up, for a key tile whose bits had no room
};
inline constexpr int kSlowPaths = 6;

}  // namespace tilewise::cuda::tile
