// What a block does beyond the steps that finite inputs of ordinary size take. The emulation of the
// kernels counts it (tests/cuda/emulation); on a GPU nothing does.
#pragma once

namespace tilewise::cuda::tile {

enum class SlowPath {
  kSecondPass,     // a tile of queries is computed again, with smaller probs
  kScannedValues,  // V of a tile of queries is searched for large numbers
  kNonFiniteTile,  // a tile of keys with non-finite V has masked keys
  kCount,
};

// One thread of a block calls it.
__device__ __forceinline__ void count_slow_path(SlowPath) {}

}  // namespace tilewise::cuda::tile
