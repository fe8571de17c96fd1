// The shared memory of a block.
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/sm80/parameters.h"
#include "cuda/tile/bands.h"
#include "cuda/tile/ldmatrix_tile.h"

namespace tilewise::cuda::sm80 {

inline constexpr int kMaxBands = 32;  // of a tile, in shared memory: one for each lane

// Rows of a tensor, from the first row of a sequence on.
template <class Element>
struct RowsOf {
  const Element* first;
  std::int64_t stride;   // elements
  std::int32_t count;    // behind them the tile is zero
  std::int32_t columns;  // D or Dv
  bool wide;             // 16 bytes at a time
};

// The tile of queries of a block.
struct Place {
  std::int32_t index;  // of the work
  std::int32_t head;
  std::int32_t first;  // rows first .. last of the sequence
  std::int32_t last;
  Sequence sequence;
};

template <class Element>
struct TileOf : Place {
  RowsOf<Element> q, k, v;
};

using Rows = RowsOf<std::uint16_t>;
using Tile = TileOf<std::uint16_t>;

// What one band makes of tiles of keys: one load, once per tile of keys.
struct alignas(16) TileRanges {
  std::int32_t first;       // that some row sees
  std::int32_t full_begin;  // full_begin .. full_end - 1: that all rows see
  std::int32_t full_end;
  std::int32_t one;  // there is one band
};

// The structured mask of the tile.
struct MaskTable {
  tile::Band bands[kMaxBands];
  std::int32_t count;  // of the bands that touch the tile, or of all that there are:
  bool in_memory;      // more than kMaxBands touch it, they stay where they are
  tile::Range keys;    // that some row sees
  bool no_full;        // full tiles are taken for partial ones
  TileRanges tiles;    // full ones only where there is one band
};

// Where a thread's part of K and of V begins in the tensors.
struct alignas(16) From {
  const std::uint16_t* k;
  const std::uint16_t* v;
};

// What the two warps of a pair tell each other; each writes its own.
template <KernelConfig kConfig>
struct alignas(16) Exchange {
  // Of a warp's rows, lane by lane: lane l has row l % 4 of the four of its quad.
  float rows[kConfig.warps][32];
  // A tile's probs of the warp's keys, as operands of 16 keys and 16 rows.
  uint4 probs[kConfig.warps][kConfig.k_tile / 32 * kConfig.row_parts][32];
};
struct NoExchange {};

template <KernelConfig kConfig>
struct Shared {
  // Where two parts take all registers.
  static constexpr bool kKeepsFrom = kConfig.row_parts == 2;

  unsigned char q[kConfig.q_bytes()];  // at the end, out
  unsigned char k[kConfig.stages][kConfig.k_bytes()];
  unsigned char v[kConfig.stages][kConfig.k_bytes()];  // right behind K
  Tile tile;
  MaskTable mask;
  From from[kKeepsFrom ? kConfig.threads() : 1];
  // The non_finite_pass pass: rows of Q and keys with an operand that is not finite; of each
  // thread, a bit for each of its rows that saw one.
  bool non_finite_pass;
  std::uint8_t seen[kConfig.threads()];
  std::uint8_t non_finite_row[kConfig.q_tile()];
  std::uint8_t non_finite_key[kConfig.k_tile];
  std::conditional_t<kConfig.paired, Exchange<kConfig>, NoExchange> exchange;
};

}  // namespace tilewise::cuda::sm80
