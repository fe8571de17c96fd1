// The configuration of a decode kernel: one constexpr value that all of its code reads.
#pragma once

#include "math/config.h"

namespace tilewise::cuda::decode {

inline constexpr int kWarps = 4;  // of a block

// The warps of a block form groups. The warps of a group have different rows of queries and share
// tiles of keys; the groups have the same rows and different keys.
struct KernelConfig {
  bool fp16;      // the operands of the products, else bf16, or fp32
  int columns;    // D and Dv are padded to it
  int row_warps;  // warps of a group, of 16 rows each
  int keys;       // of a tile of a group
  int slots;      // tiles of K and V in the ring of a group
  int blocks;     // on a multiprocessor
  bool at_phi;    // phi is the anchor of all rows (unified.cuh)
  bool fp8;       // K and V in memory, e5m2 or else e4m3
  bool e5m2;
  bool fp32;  // Q, K and V, and their products

  TILEWISE_INLINE constexpr int threads() const { return 32 * kWarps; }
  TILEWISE_INLINE constexpr int groups() const { return kWarps / row_warps; }
  TILEWISE_INLINE constexpr int group_threads() const { return 32 * row_warps; }
  TILEWISE_INLINE constexpr int rows() const { return 16 * row_warps; }
  TILEWISE_INLINE constexpr int block_keys() const { return groups() * keys; }
  TILEWISE_INLINE constexpr int element_bytes() const {  // of K and V
    return fp8 ? 1 : fp32 ? 4 : 2;
  }
  TILEWISE_INLINE constexpr int row_bytes() const { return columns * element_bytes(); }
  TILEWISE_INLINE constexpr int tile_bytes() const { return keys * row_bytes(); }
  // The parts of Q in shared memory. With fp8 a second one has the digits that the first has
  // rounded off (fp8/queries.cuh).
  TILEWISE_INLINE constexpr int q_parts() const { return fp8 ? 2 : 1; }
  TILEWISE_INLINE constexpr int q_bytes() const {  // of a part
    return rows() * columns * (fp32 ? 4 : 2);
  }
};

}  // namespace tilewise::cuda::decode
