// What a block does beyond the steps that finite inputs of ordinary size take.
#pragma once

namespace tilewise::cuda::tile {

enum class SlowPath {
  kSecondPass,     // a tile of queries is computed again, with smaller probs
  kScannedValues,  // V of a tile of queries is searched for large numbers
  kNonFiniteTile,  // a tile of keys with non-finite V may have masked keys
  kNonFinitePass,  // a block computes its gradients a second time
};
inline constexpr int kSlowPaths = 4;

}  // namespace tilewise::cuda::tile
