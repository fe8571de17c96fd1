// The configuration of a Hopper forward kernel: one constexpr value that every part of it reads.
// kernel_table.h lists those that are compiled.
#pragma once

#include <cstdint>

#include "math/config.h"

namespace tilewise::cuda::sm90 {

struct KernelConfig {
  bool fp16;      // else bf16
  int head_dim;   // D is padded to it: a multiple of 64
  int value_dim;  // Dv is padded to it: a multiple of 64
  int q_tile;     // queries of a block: 64 for each consumer warpgroup
  int k_tile;     // keys of a stage
  int k_stages;
  int v_stages;
  int q_stages;        // two: the next tile's Q arrives while this one is computed
  bool score_mod;      // softcap, ALiBi, or a scale that is not positive; fp8: scales of blocks
  bool lazy_max;       // rows keep the maximum of the first key tile until a prob overflows
  bool fused_edges;    // the two cut key tiles of a window are one step (fused_edges.cuh)
  bool block_mask;     // key tiles come from a list (tile/block_mask.h)
  bool scalar_stores;  // out may be of another type than Q, or take fewer than 16 bytes at a time
  bool fp8 = false;    // Q, K and V: then `fp16` is not used, and
  bool e5m2 = false;   // they are this, else e4m3;
  int loaded_v_stages = 0;  // V as it is loaded; v_stages: transposed (fp8/transposer.cuh)

  TILEWISE_INLINE constexpr int consumers() const { return q_tile / 64; }  // warpgroups
  // One more warpgroup holds the scheduler, producer and epilogue warps; of fp8, another one
  // transposes V.
  TILEWISE_INLINE constexpr int threads() const { return 128 * (consumers() + (fp8 ? 2 : 1)); }
  // 65536 registers, in the multiples of 8 that setmaxnreg takes.
  TILEWISE_INLINE constexpr int producer_registers() const {
    return consumers() == 3 || fp8 ? 32 : spares_registers() ? 56 : 40;
  }
  TILEWISE_INLINE constexpr int consumer_registers() const {
    if (fp8) return score_mod ? 224 : 216;
    return consumers() == 3 ? 160 : spares_registers() ? 224 : 232;
  }
  TILEWISE_INLINE constexpr int transposer_registers() const { return score_mod ? 32 : 48; }
  // Small consumers leave registers to the scheduler warp, which reads lists.
  TILEWISE_INLINE constexpr bool spares_registers() const { return block_mask && value_dim <= 64; }
  // The first warpgroup has two warps to spare: with two stages of Q, one for each consumer
  // warpgroup loads Q and stores out.
  TILEWISE_INLINE constexpr bool has_epilogue_warps() const {
    return consumers() == 2 && q_stages == 2 && !fp8;
  }
  // A third stage of K takes the memory in which out would be staged: out is staged in the place of
  // its own Q.
  TILEWISE_INLINE constexpr bool stages_out_in_q() const {
    return has_epilogue_warps() && k_stages == 3;
  }
  // A query tile starts with a key tile that no edge cuts, where there is one.
  TILEWISE_INLINE constexpr bool starts_full() const {
    return lazy_max && value_dim > 64 && !block_mask;
  }

  // Careful passes (careful_steps.cuh) compute the tiles that the fast steps cannot. D 192 and 256
  // have no registers for both: with spills D 256 was 4 to 18 % slower. Their careful passes are a
  // kernel of their own, which starts when the fast one has ended (forward.cuh). Where one kernel
  // does both, a block that needs them does not wait for the others.
  TILEWISE_INLINE constexpr bool has_careful_kernel() const { return q_stages == 1; }

  // The order of operations in a step, and the measured reason.
  //
  // Row sums are finalised during the last product with V, where registers can hold the results.
  TILEWISE_INLINE constexpr bool finalises_early() const { return value_dim <= 128; }
  // A stage of K is free as soon as its scores have arrived, but the arrival takes time. After the
  // maxima there is some, where the products of a step take longer than they do: D 64, S 2048: 437
  // TFLOP/s, before the maxima 411; D 128, S 512: 569, before 579.
  TILEWISE_INLINE constexpr bool releases_k_late() const { return value_dim <= 64; }
  // Where a warpgroup sees nothing of the first half of a query tile's last key tile, that half is
  // not multiplied with V. D 64, S 1024 causal: 394 TFLOP/s, 387 without; S 1024 full gains 2 % by
  // the branch alone. D 128, S 512: 564, 568 without.
  TILEWISE_INLINE constexpr bool skips_half() const {
    return value_dim <= 64 && !score_mod && !block_mask;
  }
  // Overflow is checked after the wait for PV where PV takes longer than the exponentials: D 128, S
  // 8192: 721 TFLOP/s, before it 714. Elsewhere before it, so that the compiler leaves no
  // exponential for later: D 64, S 16384: 584, after it 544.
  TILEWISE_INLINE constexpr bool checks_overflow_late() const { return value_dim > 64; }
  // The last steps of PV are issued among the exponentials, not before the wait for QK: scores
  // arrive earlier. D 64, S 1024: 1.06 times as fast by cycles, causal 1.04; D 128, S 8192: 1.01 by
  // time with one step, 0.93 with four, which reach the tensor cores too late
  // (bench/results/cuda/h200-sm90-cycles.txt).
  TILEWISE_INLINE constexpr int late_pv_steps() const { return value_dim > 64 ? 1 : 4; }

  // Columns of a product P V in fp8 that are computed at once. With 128, the maxima of a key tile
  // had three registers to pass through, and took 650 cycles of a step's 2600.
  TILEWISE_INLINE constexpr int pv_columns() const { return 64; }

  // Rows of Q, K and V lie in panels of 128 bytes (tile/swizzle.h), which 64 numbers of fp8 fill by
  // half.
  TILEWISE_INLINE constexpr int row_bytes(int columns) const {
    return fp8 ? (columns + 127) / 128 * 128 : columns * 2;
  }
  TILEWISE_INLINE constexpr int panel_columns() const { return fp8 ? 128 : 64; }
  TILEWISE_INLINE constexpr int q_bytes() const { return q_tile * row_bytes(head_dim); }
  TILEWISE_INLINE constexpr int k_bytes() const { return k_tile * row_bytes(head_dim); }
  TILEWISE_INLINE constexpr int loaded_v_bytes() const { return k_tile * row_bytes(value_dim); }
  TILEWISE_INLINE constexpr int v_bytes() const {
    return fp8 ? value_dim * row_bytes(k_tile) : loaded_v_bytes();
  }
};

inline constexpr int kMaxConsumers = 3;
inline constexpr int kMaxStages = 4;
inline constexpr int kMaxQStages = 2;

}  // namespace tilewise::cuda::sm90
