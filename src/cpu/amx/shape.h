// Block and tile sizes of the AMX kernels.
#pragma once

#include "cpu/simd/vector.h"

#if TILEWISE_HAS_AMX

namespace tilewise::cpu::TILEWISE_TARGET {

// Registers of a panel. Two make a block of 32 x 32, which keeps all eight tile registers busy.
inline constexpr int kPanelRegisters = 2;
inline constexpr int kAmxWidth = kPanelRegisters * Vec<float>::kLanes;
inline constexpr std::int64_t kAmxStride = std::int64_t{kAmxWidth} * 4;  // bytes
inline constexpr std::int64_t kBlockKeys = 32;
inline constexpr std::int64_t kBlockRows = 32;  // of the output
// Keys of a tile, for which the sums of the output are loaded and stored once. The probabilities of
// 32 queries take 32 KB.
inline constexpr std::int64_t kAmxKeys = 512;
// Distance, in words, from the probabilities of a tile to their low terms, where these are kept
// (fp16).
inline constexpr std::int64_t kLowProbs = kAmxKeys / 2 * kAmxWidth;
// The rescale threshold of the lazy maximum: the average of a block, relative to the probability at
// the anchor. Probabilities of up to 2^13 (a block below the threshold may hold one of them) lose
// nothing in a sum of bf16 products, and the anchor seldom moves.
inline constexpr float kRescaleThreshold = 0x1p8f;

// How vector work and tile products overlap. With one of `every` products go `pairs` pairs of keys.
// terms: the number of terms of probabilities and inputs, one for bf16 and two for fp16. exact:
// whether probabilities must be exact in fp32 (see Anchors).
struct SlicePlan {
  int pairs;
  int every;
  int terms;
  bool exact;
};

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AMX
