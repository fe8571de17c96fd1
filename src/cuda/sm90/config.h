// The shapes of the Hopper kernels: one constexpr value for each kernel, and the table that
// chooses.
#pragma once

#include "math/config.h"

namespace tilewise::cuda::sm90 {

struct KernelConfig {
  bool fp16;     // else bf16
  int head_dim;  // D and Dv are padded to it: 64 or 128
  int q_tile;    // rows of Q in a block: 64 to a consumer warpgroup
  int k_tile;    // keys in a stage
  int stages;    // of K and of V each
  bool general;  // scores need more than a positive scale: softcap, ALiBi, another scale

  // That consume; one more produces.
  TILEWISE_INLINE constexpr int warpgroups() const { return q_tile / 64; }
  TILEWISE_INLINE constexpr int threads() const { return 128 * (warpgroups() + 1); }
  // 65536 registers, in the multiples of 8 that setmaxnreg takes.
  TILEWISE_INLINE constexpr int producer_registers() const { return warpgroups() == 2 ? 40 : 32; }
  TILEWISE_INLINE constexpr int consumer_registers() const { return warpgroups() == 2 ? 232 : 160; }
  TILEWISE_INLINE constexpr int q_bytes() const { return q_tile * head_dim * 2; }
  TILEWISE_INLINE constexpr int k_bytes() const { return k_tile * head_dim * 2; }
};

// A configuration as a number: the name that nvcc 13 gives to a kernel whose template parameter is
// a struct does not compile.
TILEWISE_INLINE constexpr std::uint32_t encode(const KernelConfig& config) {
  return static_cast<std::uint32_t>(config.head_dim) << 23 |
         static_cast<std::uint32_t>(config.q_tile << 14 | config.k_tile << 5 | config.stages << 2 |
                                    (config.fp16 ? 2 : 0) | (config.general ? 1 : 0));
}
TILEWISE_INLINE constexpr KernelConfig decode(std::uint32_t code) {
  return {(code & 2) != 0,
          static_cast<int>(code >> 23),
          static_cast<int>(code >> 14 & 511),
          static_cast<int>(code >> 5 & 511),
          static_cast<int>(code >> 2 & 7),
          (code & 1) != 0};
}

inline constexpr int kMostWarpgroups = 3;
inline constexpr int kMostStages = 4;

// Why these tiles. The stages of K and of V beside Q fill 227 KB of shared memory at most; scores
// (k_tile / 2), weights (k_tile / 4) and out (D / 2) of a thread must fit its registers with some
// twenty to spare.
struct TileRow {
  int head_dim;
  bool edges;  // causal or a window: tiles that are cut are wasted work, so smaller ones
  int q_tile;
  int k_tile;
  int stages;
  const char* reason;
};
inline constexpr TileRow kTiles[] = {
    {64, false, 192, 128, 2, "three warpgroups share each K and V: 160 registers leave 128 keys"},
    {64, true, 192, 128, 2, "the same"},
    {128, false, 128, 176, 2, "as many keys as shared memory holds twice (212 KB)"},
    {128, true, 128, 128, 2, "a square diagonal tile"},
};
inline constexpr int kTileRows = 4;

// The row of the table for a head dimension and a kind of mask.
constexpr int tile_row(int head_dim, bool edges) {
  int row = 0;
  while (kTiles[row].head_dim != head_dim || kTiles[row].edges != edges) ++row;
  return row;
}

}  // namespace tilewise::cuda::sm90
