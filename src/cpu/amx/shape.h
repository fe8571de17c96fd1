// Shape.
#pragma once

#include "cpu/simd/vector.h"

#if TILEWISE_HAS_AMX

namespace tilewise::cpu::TILEWISE_TARGET {

// Registers to a panel: two make the 32 x 32 block that keeps all eight tile registers busy.
inline constexpr int kPanelRegisters = 2;
inline constexpr int kAmxWidth = kPanelRegisters * Vec<float>::kLanes;
inline constexpr std::int64_t kAmxStride = std::int64_t{kAmxWidth} * 4;  // bytes
inline constexpr std::int64_t kBlockKeys = 32;
inline constexpr std::int64_t kBlockRows = 32;  // of the output
// Keys of a tile: the sums of the output are loaded and stored once for so many; the weights are 32
// KB.
inline constexpr std::int64_t kAmxKeys = 512;
// Words from the weights of a tile to what their rounding left, where that is kept (fp16).
inline constexpr std::int64_t kLowProbs = kAmxKeys / 2 * kAmxWidth;
// Weights of up to 2^13 (a block's sum that stays below its bound may hold one of them) in a sum of
// bf16 products lose nothing, and the reference seldom moves.
inline constexpr float kRescaleThreshold = 0x1p8f;

// How much vector work goes with the products of the unit: `pairs` pairs of keys with one of
// `every` products; in how many terms weights and inputs are multiplied: one bf16, or two for fp16;
// whether weights must be exact in fp32 (see References).
struct SlicePlan {
  int pairs;
  int every;
  int terms;
  bool exact;
};

}  // namespace tilewise::cpu::TILEWISE_TARGET

#endif  // TILEWISE_HAS_AMX
