// The Hopper forward kernels that are compiled, each once for bf16 and once for fp16.
// CMakeLists.txt makes a source file of every few rows.
#pragma once

#include "cuda/forward/sm90/config.h"

namespace tilewise::cuda::sm90 {

// The abilities of a kernel. The plain one stores out in the type of Q in 16-byte pieces, and takes
// scores that need only a positive scale.
enum class Variant {
  kPlain,
  kScalarStores,       // any type and alignment of out, in a kernel whose epilogue warps store else
  kFusedEdges,         // windows whose edges cut key tiles along one diagonal (fused_edges.cuh)
  kScoreMod,           // softcap, ALiBi, any scale, and any type and alignment of out
  kBlockMask,          // slices and boolean masks, and any type and alignment of out
  kBlockMaskScoreMod,  // all of these
};

TILEWISE_INLINE constexpr bool has_score_mod(Variant variant) {
  return variant == Variant::kScoreMod || variant == Variant::kBlockMaskScoreMod;
}
TILEWISE_INLINE constexpr bool has_block_mask(Variant variant) {
  return variant == Variant::kBlockMask || variant == Variant::kBlockMaskScoreMod;
}

// The limit is of shared memory (227 KB for the stages of Q, K and V) and of registers: scores
// (k_tile / 2), probs (k_tile / 4) and out (Dv / 2) of a thread, with some twenty to spare.
struct KernelRow {
  int head_dim;
  int value_dim;
  int q_tile;
  int k_tile;
  int k_stages;
  int v_stages;
  int q_stages;
  Variant variant;
  bool lazy_max;
  int max_keys;     // of a sequence
  int max_visible;  // keys that a row sees in the middle of a sequence
  const char* reason;

  TILEWISE_INLINE constexpr KernelConfig config(bool fp16) const {
    KernelConfig config = {.fp16 = fp16,
                           .head_dim = head_dim,
                           .value_dim = value_dim,
                           .q_tile = q_tile,
                           .k_tile = k_tile,
                           .k_stages = k_stages,
                           .v_stages = v_stages,
                           .q_stages = q_stages,
                           .score_mod = has_score_mod(variant),
                           .lazy_max = lazy_max,
                           .fused_edges = variant == Variant::kFusedEdges,
                           .block_mask = has_block_mask(variant),
                           .scalar_stores = true};
    if (config.has_epilogue_warps())
      config.scalar_stores = variant != Variant::kPlain && variant != Variant::kFusedEdges;
    return config;
  }
};
inline constexpr int kAny = 2147483647;

// The first row that can do what a problem needs serves (select.h). Scalar stores have rows of
// their own since their code, amid which others leave, costs the plain kernels time: D 128, window
// of 1024 keys 1.015, S 512 causal 1.04.
inline constexpr KernelRow kKernels[] = {
    {64, 64, 128, 128, 4, 4, 2, Variant::kPlain, true, 1024, kAny,
     "short sequences: less of a tile of 192 rows lies beyond the end or the diagonal"},
    {64, 64, 128, 128, 4, 4, 2, Variant::kScalarStores, true, 1024, kAny, "as the plain kernel"},
    {64, 64, 192, 128, 4, 4, 2, Variant::kPlain, true, kAny, kAny,
     "three warpgroups share K and V, 160 registers hold 128 keys"},
    {64, 64, 128, 128, 4, 4, 2, Variant::kScoreMod, false, kAny, kAny,
     "softcap and ALiBi take registers that three warpgroups have not"},
    {128, 128, 128, 128, 2, 2, 2, Variant::kPlain, false, kAny, 272,
     "few keys to a row: the next Q is loaded before out is stored"},
    {128, 128, 128, 128, 2, 2, 2, Variant::kScalarStores, false, kAny, 272, "as the plain kernel"},
    {128, 128, 128, 128, 3, 2, 2, Variant::kFusedEdges, true, kAny, kAny,
     "one step for two cut key tiles"},
    {128, 128, 128, 128, 3, 2, 2, Variant::kPlain, true, kAny, kAny,
     "a square tile at the diagonal, K held until probs are known"},
    {128, 128, 128, 128, 3, 2, 2, Variant::kScalarStores, true, kAny, kAny, "as the plain kernel"},
    {128, 128, 128, 128, 3, 2, 2, Variant::kScoreMod, false, kAny, kAny, "as the plain kernel"},
    {192, 128, 128, 128, 2, 2, 1, Variant::kPlain, false, kAny, 1024,
     "few keys to a row: K arrives late, and is loaded as soon as there are scores"},
    {192, 128, 128, 128, 2, 2, 1, Variant::kPlain, true, kAny, kAny,
     "as many keys as shared memory holds twice (224 KB)"},
    {192, 128, 128, 128, 2, 2, 1, Variant::kScoreMod, false, kAny, kAny, "as the plain kernel"},
    {256, 256, 128, 64, 2, 2, 1, Variant::kPlain, false, kAny, kAny,
     "as many keys as shared memory holds twice (208 KB)"},
    {256, 256, 128, 64, 2, 2, 1, Variant::kScoreMod, false, kAny, kAny, "as the plain kernel"},
    {64, 64, 192, 128, 4, 4, 2, Variant::kBlockMask, true, kAny, kAny,
     "slices over more than 1024 keys: as the plain kernel"},
    {64, 64, 128, 128, 4, 4, 2, Variant::kBlockMask, true, kAny, kAny,
     "short sequences, and boolean masks, in which blocks of 128 x 128 are whole tiles"},
    {64, 64, 128, 128, 4, 4, 2, Variant::kBlockMaskScoreMod, false, kAny, kAny, "as without"},
    {128, 128, 128, 128, 3, 2, 2, Variant::kBlockMask, true, kAny, kAny, "as the plain kernel"},
    {128, 128, 128, 128, 3, 2, 2, Variant::kBlockMaskScoreMod, false, kAny, kAny, "as without"},
    {192, 128, 128, 128, 2, 2, 1, Variant::kBlockMaskScoreMod, false, kAny, kAny, "as without"},
    {256, 256, 128, 64, 2, 2, 1, Variant::kBlockMaskScoreMod, false, kAny, kAny, "as without"},
};
inline constexpr int kKernelRows = static_cast<int>(sizeof(kKernels) / sizeof(kKernels[0]));

}  // namespace tilewise::cuda::sm90
