// The configuration of a kernel for Ampere and later: one constexpr value that all of its code
// reads. The tables of compiled kernels are with the operations (forward/sm80/kernel_table.h).
#pragma once

#include "math/config.h"

namespace tilewise::cuda::sm80 {

struct KernelConfig {
  bool fp16;         // else bf16
  bool score_mod;    // scores need more than a positive scale, or probs are dropped
  int columns;       // D and Dv are padded to it
  int warps;         // of a block
  int row_blocks;    // of 16 rows of Q for each warp
  int k_tile;        // keys in a stage
  int stages;        // 1: K and V alternate; 2: the next tiles of both are copied meanwhile
  bool q_registers;  // Q stays in registers; else it is read again for each tile of keys
  // Two warps compute the same rows: half of the keys of the scores each, and half of the columns
  // of out. An operand from shared memory then serves twice as many rows.
  bool paired;
  int blocks;  // on a multiprocessor

  TILEWISE_INLINE constexpr int threads() const { return 32 * warps; }
  TILEWISE_INLINE constexpr int pair_size() const { return paired ? 2 : 1; }
  TILEWISE_INLINE constexpr int q_tile() const { return 16 * row_blocks * warps / pair_size(); }
  TILEWISE_INLINE constexpr int q_bytes() const { return q_tile() * columns * 2; }
  TILEWISE_INLINE constexpr int k_bytes() const { return k_tile * columns * 2; }
};

// A row of a table of kernels.
struct TileRow {
  int columns;
  bool score_mod;
  int shared_bytes;  // that a block may use, at least
  int warps;
  int row_blocks;
  int k_tile;
  int stages;
  bool q_registers;
  int blocks;
  const char* reason;
  int least_keys = 0;  // of a sequence
  bool paired = false;

  TILEWISE_INLINE constexpr KernelConfig config(bool fp16) const {
    return {fp16,   score_mod, columns,     warps,  row_blocks,
            k_tile, stages,    q_registers, paired, blocks};
  }
};

inline constexpr int kHuge = 227 * 1024;   // compute capability 9.0, 10.0
inline constexpr int kLarge = 163 * 1024;  // 8.0, 8.7
inline constexpr int kSmall = 99 * 1024;   // 8.6, 8.9, 12.0

}  // namespace tilewise::cuda::sm80
