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
  int k_stages;   // places for tiles of K,
  int v_stages;   // of V,
  int q_stages;   // and of Q: with two, the next tile's Q is there before this one is done
  bool general;   // scores need more than a positive scale: softcap, ALiBi, another scale
  bool keeps;     // rows keep the maximum of the first tile of keys while weights have room
  bool folds;     // the two cut tiles of keys of a window are one step (fold.cuh)
  bool narrow;    // rows of out may be of another type than Q, or not take 16 bytes at a time

  // That consume; one more produces.
  TILEWISE_INLINE constexpr int warpgroups() const { return q_tile / 64; }
  TILEWISE_INLINE constexpr int threads() const { return 128 * (warpgroups() + 1); }
  // 65536 registers, in the multiples of 8 that setmaxnreg takes.
  TILEWISE_INLINE constexpr int producer_registers() const { return warpgroups() == 2 ? 40 : 32; }
  TILEWISE_INLINE constexpr int consumer_registers() const { return warpgroups() == 2 ? 232 : 160; }
  // The producer's warpgroup has two warps to spare: with two places of Q, one for each consumer
  // warpgroup brings Q and takes rows of out away.
  TILEWISE_INLINE constexpr bool has_carriers() const { return warpgroups() == 2 && q_stages == 2; }
  // A third place for K takes the memory through which rows of out would leave: they leave through
  // the place of their own Q.
  TILEWISE_INLINE constexpr bool out_through_q() const { return has_carriers() && k_stages == 3; }
  // Tiles of queries begin with a tile of keys that no edge cuts.
  TILEWISE_INLINE constexpr bool begins_full() const { return keeps && value_dim > 64; }

  // What consumers do when, and the measured reason.
  //
  // Sums are closed beside the last product, where there are registers for what comes of it.
  TILEWISE_INLINE constexpr bool closes_early() const { return value_dim <= 128; }
  // K is free as soon as its scores have come, but to say so takes its time. Behind the maxima
  // there is some, where the products of a step take longer than they do: at D 64, S 2048, 437
  // TFLOP/s, not 411; at D 128, 569, not 579 (S 512).
  TILEWISE_INLINE constexpr bool frees_late() const { return value_dim <= 64; }
  // Of the last tile of keys of a window, the half that the warpgroup does not see is not
  // multiplied with V: at D 64, S 1024 causal, 394 TFLOP/s, not 387 (nor are there such branches
  // where there is no window: S 512, 435, not 427). At D 128, S 512, 564, not 568.
  TILEWISE_INLINE constexpr bool skips_half() const { return value_dim <= 64 && !general; }
  // Whether weights have grown too large is looked at behind the wait for the product, which takes
  // longer: at D 128, S 8192, 721 TFLOP/s, not 714. Where it takes no longer than the exponentials,
  // before it, so that the compiler leaves none of them for later: at D 64, S 16384, 584, not 544.
  TILEWISE_INLINE constexpr bool looks_late() const { return value_dim > 64; }
  // The last steps of a product with V that are asked for among the exponentials, not before the
  // scores are waited for: those begin earlier. At D 64, S 1024, 1.06 and causal 1.04 times as fast
  // by cycles; at D 128, S 8192, 1.01 by time with one, 0.93 with four, which come too late for the
  // tensor cores (bench/results/cuda/h200-sm90-cycles.txt).
  TILEWISE_INLINE constexpr int steps_beside() const { return value_dim > 64 ? 1 : 4; }

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
  code = code << 8 |
         static_cast<std::uint64_t>(config.k_stages << 5 | config.v_stages << 2 | config.q_stages);
  return code << 5 | static_cast<std::uint64_t>((config.narrow ? 16 : 0) | (config.folds ? 8 : 0) |
                                                (config.keeps ? 4 : 0) | (config.general ? 2 : 0) |
                                                (config.fp16 ? 1 : 0));
}
TILEWISE_INLINE constexpr KernelConfig decode(std::uint64_t code) {
  const auto part = [code](int shift, std::uint64_t mask) {
    return static_cast<int>(code >> shift & mask);
  };
  return {.fp16 = part(0, 1) != 0,
          .head_dim = part(40, 511),
          .value_dim = part(31, 511),
          .q_tile = part(22, 511),
          .k_tile = part(13, 511),
          .k_stages = part(10, 7),
          .v_stages = part(7, 7),
          .q_stages = part(5, 3),
          .general = part(1, 1) != 0,
          .keeps = part(2, 1) != 0,
          .folds = part(3, 1) != 0,
          .narrow = part(4, 1) != 0};
}

inline constexpr int kMostWarpgroups = 3;
inline constexpr int kMostStages = 4;
inline constexpr int kMostQStages = 2;

// Why these tiles. The places of K and of V beside Q fill 227 KB of shared memory at most; scores
// (k_tile / 2), weights (k_tile / 4) and out (Dv / 2) of a thread must fit its registers with some
// twenty to spare.
struct TileRow {
  int head_dim;
  int value_dim;
  int most_keys;  // of a sequence,
  int most_seen;  // and of them those that a row sees, in the middle of a sequence
  int q_tile;
  int k_tile;
  int k_stages;
  int v_stages;
  int q_stages;
  bool keeps;
  const char* reason;
};
inline constexpr int kAnyKeys = 2147483647;
inline constexpr TileRow kTiles[] = {
    {64, 64, 1024, kAnyKeys, 128, 128, 4, 4, 2, true,
     "short sequences: less of a tile of 192 rows is behind the end or the diagonal"},
    {64, 64, kAnyKeys, kAnyKeys, 192, 128, 4, 4, 2, true,
     "three warpgroups share K and V, 160 registers hold 128 keys"},
    {128, 128, kAnyKeys, 272, 128, 128, 2, 2, 2, false,
     "few keys to a row: the next Q is asked for before rows of out leave"},
    {128, 128, kAnyKeys, kAnyKeys, 128, 128, 3, 2, 2, true,
     "a square tile at the diagonal, K held until weights are known"},
    {192, 128, kAnyKeys, 1024, 128, 128, 2, 2, 1, false,
     "few keys to a row: K comes late, and is asked for as soon as there are scores"},
    {192, 128, kAnyKeys, kAnyKeys, 128, 128, 2, 2, 1, true,
     "as many keys as shared memory holds twice (224 KB)"},
    {256, 256, kAnyKeys, kAnyKeys, 128, 64, 2, 2, 1, false,
     "as many keys as shared memory holds twice (208 KB)"},
};
inline constexpr int kTileRows = 7;
inline constexpr int kNarrowRows[] = {0, 2, 3};  // have kernels for narrow rows of out, too
inline constexpr int kNarrowCount = 3;
inline constexpr int kFoldingRow = 3;  // has a kernel that folds, too
inline constexpr int kWideRow = 4;     // rows 0 to 2, 3, and those from here on are in files of
                                       // their own, for the compiler's sake

// The row of the table for dimensions up to 256, sequences of so many keys, and rows that see so
// many of them: the first that holds them.
constexpr int tile_row(std::int64_t head_dim, std::int64_t value_dim, std::int64_t keys,
                       std::int64_t seen) {
  int row = 0;
  while (kTiles[row].head_dim < head_dim || kTiles[row].value_dim < value_dim ||
         kTiles[row].most_keys < keys || kTiles[row].most_seen < seen) {
    ++row;
  }
  return row;
}

// The row whose shape general scores take. Softcap and ALiBi take registers, which three warpgroups
// have not: the row before is for two. Where few keys are seen, the row behind does as well.
constexpr int general_row(int row) {
  if (kTiles[row].q_tile == 192) return row - 1;
  return kTiles[row].most_seen == kAnyKeys ? row : row + 1;
}

// The kernel of a row of the table. The plain ones with carriers have no code for narrow rows,
// amid which others leave (D 128: window of 1024 keys 1.015, S 512 causal 1.04 by time): those have
// kernels of their own.
constexpr KernelConfig config_of(int index, bool fp16, bool general) {
  const TileRow row = kTiles[general ? general_row(index) : index];
  KernelConfig config = {.fp16 = fp16,
                         .head_dim = row.head_dim,
                         .value_dim = row.value_dim,
                         .q_tile = row.q_tile,
                         .k_tile = row.k_tile,
                         .k_stages = row.k_stages,
                         .v_stages = row.v_stages,
                         .q_stages = row.q_stages,
                         .general = general,
                         .keeps = row.keeps && !general,
                         .folds = false,
                         .narrow = true};
  config.narrow = general || !config.has_carriers();
  return config;
}
constexpr KernelConfig narrow(KernelConfig config) {
  config.narrow = true;
  return config;
}
constexpr KernelConfig folding(KernelConfig config) {
  config.folds = true;
  return config;
}

}  // namespace tilewise::cuda::sm90
