// The configuration of a Hopper backward kernel: one constexpr value that all of its code reads.
#pragma once

#include "math/config.h"

namespace tilewise::cuda::backward::sm90 {

struct KernelConfig {
  bool fp16;    // else bf16
  int columns;  // D and Dv are padded to it: a multiple of 64
  int q_tile;   // queries of a stage: a multiple of 64
  int stages;   // Q and dO have so many each
  // Tiles of queries come from a list (tile/block_mask.h): slices and boolean masks.
  bool block_mask;
  bool score_mod;  // softcap and ALiBi

  // Two consumer warpgroups own 64 keys each, or, in a pair of blocks, all of a block's 64. One
  // more warpgroup holds the producer.
  static constexpr int kConsumers = 2;
  static constexpr int kKTile = 64 * kConsumers;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  // 65536 registers, in the multiples of 8 that setmaxnreg takes.
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;

  // Whether two blocks share a tile of keys (pair/backward.cuh).
  TILEWISE_INLINE constexpr bool paired() const { return columns > 128; }
  TILEWISE_INLINE constexpr int block_keys() const { return paired() ? kKTile / 2 : kKTile; }
  // Blocks (64, 64) of dQ of a tile of queries.
  TILEWISE_INLINE constexpr int dq_blocks() const { return q_tile * columns / (64 * 64); }
  TILEWISE_INLINE constexpr int k_bytes() const { return kKTile * columns * 2; }
  TILEWISE_INLINE constexpr int q_bytes() const { return q_tile * columns * 2; }
  TILEWISE_INLINE constexpr int score_bytes() const { return kKTile * q_tile * 2; }
};

// A row of the table of kernels.
struct TileRow {
  int columns;
  int q_tile;
  int stages;
  bool block_mask;
  bool score_mod;
  const char* reason;

  TILEWISE_INLINE constexpr KernelConfig config(bool fp16) const {
    return {fp16, columns, q_tile, stages, block_mask, score_mod};
  }
};

}  // namespace tilewise::cuda::backward::sm90
