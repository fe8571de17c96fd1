// The configuration of a backward kernel for Ampere and later: one constexpr value that all of its
// code reads.
#pragma once

#include "cuda/sm80/kernel_config.h"

namespace tilewise::cuda::backward::sm80 {

// The warps of a block share each product as a grid. *_row_warps is the number of its rows; the
// other warps share its columns.
struct KernelConfig {
  bool fp16;               // else bf16
  bool score_mod;          // scores need more than a positive scale, or probs are dropped
  int columns;             // D and Dv are padded to it
  int warps;               // of a block
  int q_tile;              // queries in a stage
  int k_tile;              // keys of a block
  int score_row_warps;     // S and dP (q_tile, k_tile)
  int gradient_row_warps;  // dK and dV (k_tile, columns)
  int query_row_warps;     // dQ (q_tile, columns)
  int stages;              // 2: the next tile of Q and dO is copied meanwhile
  int blocks;              // on a multiprocessor

  // Whether registers are left for the offsets of operands.
  TILEWISE_INLINE constexpr bool keeps_offsets() const { return q_tile < 128; }
  TILEWISE_INLINE constexpr int threads() const { return 32 * warps; }
  TILEWISE_INLINE constexpr int q_bytes() const { return q_tile * columns * 2; }
  TILEWISE_INLINE constexpr int k_bytes() const { return k_tile * columns * 2; }
  TILEWISE_INLINE constexpr int score_bytes() const { return q_tile * k_tile * 2; }
};

// A row of the table of kernels.
struct TileRow {
  int columns;
  bool score_mod;
  int shared_bytes;  // that a block may use, at least
  int warps;
  int q_tile;
  int k_tile;
  int score_row_warps;
  int gradient_row_warps;
  int query_row_warps;
  int stages;
  int blocks;
  const char* reason;

  TILEWISE_INLINE constexpr KernelConfig config(bool fp16) const {
    return {fp16,
            score_mod,
            columns,
            warps,
            q_tile,
            k_tile,
            score_row_warps,
            gradient_row_warps,
            query_row_warps,
            stages,
            blocks};
  }
};

}  // namespace tilewise::cuda::backward::sm80
