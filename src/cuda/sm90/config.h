// The shapes of the Hopper kernels: one constexpr value for each kernel, and the table that
// chooses.
#pragma once

#include <cstdint>

#include "math/config.h"

namespace tilewise::cuda::sm90 {

struct KernelConfig {
  bool fp16;      // else bf16
  int head_dim;   // D is padded to it, and
  int value_dim;  // Dv to this one: multiples of 64
  int q_tile;     // rows of Q in a block: 64 to a consumer warpgroup
  int k_tile;     // keys in a stage
  int stages;     // of K and of V each
  int q_stages;   // of Q: with two, the next tile's Q is there before this one is done
  bool general;   // scores need more than a positive scale: softcap, ALiBi, another scale

  // That consume; one more produces.
  TILEWISE_INLINE constexpr int warpgroups() const { return q_tile / 64; }
  TILEWISE_INLINE constexpr int threads() const { return 128 * (warpgroups() + 1); }
  // 65536 registers, in the multiples of 8 that setmaxnreg takes.
  TILEWISE_INLINE constexpr int producer_registers() const { return warpgroups() == 2 ? 40 : 32; }
  TILEWISE_INLINE constexpr int consumer_registers() const { return warpgroups() == 2 ? 232 : 160; }
  TILEWISE_INLINE constexpr int q_bytes() const { return q_tile * head_dim * 2; }
  TILEWISE_INLINE constexpr int k_bytes() const { return k_tile * head_dim * 2; }
  TILEWISE_INLINE constexpr int v_bytes() const { return k_tile * value_dim * 2; }
};

// A configuration as a number: the name that nvcc 13 gives to a kernel whose template parameter is
// a struct does not compile.
TILEWISE_INLINE constexpr std::uint64_t encode(const KernelConfig& config) {
  const int parts[] = {config.head_dim, config.value_dim, config.q_tile, config.k_tile};
  std::uint64_t code = 0;
  for (const int part : parts) code = code << 9 | static_cast<std::uint64_t>(part);
  return code << 7 | static_cast<std::uint64_t>(config.stages << 4 | config.q_stages << 2 |
                                                (config.fp16 ? 2 : 0) | (config.general ? 1 : 0));
}
TILEWISE_INLINE constexpr KernelConfig decode(std::uint64_t code) {
  const auto part = [code](int shift, std::uint64_t mask) {
    return static_cast<int>(code >> shift & mask);
  };
  return {part(1, 1) != 0, part(34, 511), part(25, 511), part(16, 511),
          part(7, 511),    part(4, 7),    part(2, 3),    part(0, 1) != 0};
}

inline constexpr int kMostWarpgroups = 3;
inline constexpr int kMostStages = 4;
inline constexpr int kMostQStages = 2;

// Why these tiles. The stages of K and of V beside Q fill 227 KB of shared memory at most; scores
// (k_tile / 2), weights (k_tile / 4) and out (Dv / 2) of a thread must fit its registers with some
// twenty to spare.
struct TileRow {
  int head_dim;
  int value_dim;
  int most_keys;  // of a sequence
  int q_tile;
  int k_tile;
  int stages;
  int q_stages;
  const char* reason;
};
inline constexpr int kAnyKeys = 2147483647;
inline constexpr TileRow kTiles[] = {
    {64, 64, 2048, 128, 128, 4, 2,
     "short sequences: less of a tile of 192 rows is behind the end or the diagonal"},
    {64, 64, kAnyKeys, 192, 128, 4, 2,
     "three warpgroups share K and V, 160 registers hold 128 keys"},
    {128, 128, kAnyKeys, 128, 128, 2, 2, "a square tile at the diagonal, and two places for Q"},
    {192, 128, kAnyKeys, 128, 128, 2, 1, "as many keys as shared memory holds twice (224 KB)"},
    {256, 256, kAnyKeys, 128, 64, 2, 1, "as many keys as shared memory holds twice (208 KB)"},
};
inline constexpr int kTileRows = 5;
inline constexpr int kWideRow = 3;  // from here on in files of their own, for the compiler's sake

// The row of the table for dimensions up to 256 and sequences of so many keys: the first that holds
// them.
constexpr int tile_row(std::int64_t head_dim, std::int64_t value_dim, std::int64_t keys) {
  int row = 0;
  while (kTiles[row].head_dim < head_dim || kTiles[row].value_dim < value_dim ||
         kTiles[row].most_keys < keys) {
    ++row;
  }
  return row;
}

}  // namespace tilewise::cuda::sm90
