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
  std::int32_t count;    // the tile is zero after them
  std::int32_t columns;  // D or Dv
  bool aligned16;        // 16 bytes can be copied at a time
};

// The tile of queries of a block or, in the backward pass, of keys.
struct HeadTile {
  std::int32_t index;  // of the work
  std::int32_t head;   // of the queries
  std::int32_t first;  // rows or keys first .. last of the sequence
  std::int32_t last;
  Sequence sequence;
};

template <class Element>
struct WorkTileOf : HeadTile {
  RowsOf<Element> q, k, v;
};
using Rows = RowsOf<std::uint16_t>;
using WorkTile = WorkTileOf<std::uint16_t>;

// The classes of the key tiles under a single band; one load per key tile reads them.
struct alignas(16) TileRanges {
  std::int32_t first;       // the first tile that some row sees
  std::int32_t full_begin;  // full_begin .. full_end - 1: tiles that all rows see
  std::int32_t full_end;
  std::int32_t one;  // there is one band
};

// The structured mask of the work tile.
struct MaskTable {
  tile::Band bands[kMaxBands];
  std::int32_t count;  // of the bands that touch the tile, or of all slices if in_global
  bool in_global;      // more than kMaxBands touch the tile: they are read from global memory
  tile::Range range;   // the keys that some row sees, or the rows that see some key
  TileRanges tiles;    // has full tiles only if there is one band
};

// The addresses of the thread's first chunks of K and of V in global memory.
struct alignas(16) ThreadSources {
  const std::uint16_t* k;
  const std::uint16_t* v;
};

// What the two warps of a pair exchange. Each warp writes its own entries.
template <KernelConfig kConfig>
struct alignas(16) PairBuffers {
  // A value for each row of a warp, lane by lane: lane l has row l % 4 of the four of its quad.
  float rows[kConfig.warps][32];
  // The probs of a tile for the warp's keys, as operands of 16 keys and 16 rows.
  uint4 probs[kConfig.warps][kConfig.k_tile / 32 * kConfig.row_blocks][32];
};
struct NoPairBuffers {};

template <KernelConfig kConfig>
struct Shared {
  // With two row blocks in a warp, the main loop has no registers left for the sources.
  static constexpr bool kSourcesInShared = kConfig.row_blocks == 2;
  // Where it reads Q in each step, too, it has none for the destinations.
  static constexpr bool kDestinationsInShared = kSourcesInShared && !kConfig.q_registers;
  static constexpr bool kMaximaInShared = kDestinationsInShared && !kConfig.paired;

  unsigned char q[kConfig.q_bytes()];  // later the staged output
  unsigned char k[kConfig.stages][kConfig.k_bytes()];
  unsigned char v[kConfig.stages][kConfig.k_bytes()];  // adjacent to K
  WorkTile tile;
  MaskTable mask;
  ThreadSources sources[kSourcesInShared ? kConfig.threads() : 1];
  std::uint32_t destinations[kDestinationsInShared ? kConfig.threads() : 1];  // of the same chunks
  float4 maxima[kMaximaInShared ? kConfig.threads() : 1];  // of the four rows of a lane
  bool has_zeroed_values;  // non-finite elements of V have counted as zero (masked_values.cuh)
  float prob_shift;        // s: probs are 2^-s times as large (large_values.cuh)
  float careful_anchor;    // a warp with an anchor of this size computes its probs carefully
  std::conditional_t<kConfig.paired, PairBuffers<kConfig>, NoPairBuffers> pair;
};

}  // namespace tilewise::cuda::sm80
