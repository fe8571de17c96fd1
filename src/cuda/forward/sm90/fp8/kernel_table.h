// The Hopper forward kernels for fp8, each once for e4m3 and once for e5m2.
#pragma once

#include "cuda/forward/sm90/config.h"

namespace tilewise::cuda::sm90 {

// A step of 128 queries and 128 keys at D 128, in cycles of a multiprocessor:
//   tensor cores      1024   (4096 multiply-adds a cycle)
//   exp2              1024   (16 a cycle)
//   shared memory     1152   (128 bytes a cycle: 48 KB for Q K^T, 32 KB for P V, 32 KB by TMA,
//                             32 KB for the transposition of V)
//   issue slots       some 900 of a scheduler: an FMA, exp2, sum and maximum for each score, half a
//                     conversion, and an FMA for each of two numbers of O
// No more than these 128 keys: a lane's mask is one word, and scales of blocks of 128 rows are one
// number for a tile. Registers: 64 scores, 16 probs, Dv / 2 of a product and of O, of 232.
struct Fp8KernelRow {
  int head_dim;
  int value_dim;
  int k_stages;
  int loaded_v_stages;
  int v_stages;
  bool score_mod;  // scales of blocks, softcap, ALiBi
  const char* reason;

  TILEWISE_INLINE constexpr KernelConfig config(bool e5m2) const {
    return {.fp16 = false,
            .head_dim = head_dim,
            .value_dim = value_dim,
            .q_tile = 128,
            .k_tile = 128,
            .k_stages = k_stages,
            .v_stages = v_stages,
            .q_stages = 2,
            .score_mod = score_mod,
            .lazy_max = false,
            .fused_edges = false,
            .block_mask = false,
            .scalar_stores = true,
            .fp8 = true,
            .e5m2 = e5m2,
            .loaded_v_stages = loaded_v_stages};
  }
};

inline constexpr Fp8KernelRow kFp8Kernels[] = {
    {64, 64, 3, 3, 4, false, "half of a row of Q, K and V is zero in shared memory"},
    {128, 128, 3, 3, 4, false, "176 registers of a consumer hold scores, probs, a product and O"},
    {64, 64, 3, 3, 4, true, "as the plain kernel"},
    {128, 128, 3, 3, 4, true, "as the plain kernel"},
};
inline constexpr int kFp8KernelRows =
    static_cast<int>(sizeof(kFp8Kernels) / sizeof(kFp8Kernels[0]));

}  // namespace tilewise::cuda::sm90
