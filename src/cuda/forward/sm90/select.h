// Selects the row of the kernel table for a problem. It needs no header of CUDA, so that tests run
// without a GPU.
#pragma once

#include "cuda/forward/sm90/fp8/kernel_table.h"
#include "cuda/forward/sm90/kernel_table.h"
#include "cuda/host/scheduling.h"
#include "cuda/tile/scheduler.h"
#include "math/integer.h"
#include "problem/problem.h"

namespace tilewise::cuda::sm90 {

// Row and key numbers as the device counts them.
inline std::int32_t clamped_length(std::int64_t x) {
  return static_cast<std::int32_t>(math::min(x, tile::kMaxLength));
}

// A plain kernel multiplies by the scale inside of the exponent, which needs a positive one.
inline bool needs_score_mod(const problem::Problem& problem) {
  constexpr double kLeastScale = 1e-30;
  return problem.softcap > 0 || problem.alibi_slopes.present() || problem.scale < kLeastScale;
}

// The keys that the middle row of the longest sequence sees; under a causal mask, the mean of all.
inline std::int64_t visible_keys(const problem::Problem& problem) {
  const std::int32_t k_len = clamped_length(problem.max_k);
  const std::int32_t q_len = clamped_length(problem.max_q);
  const tile::WindowBand band =
      tile::window_band(k_len, problem.top_left ? 0 : k_len - q_len,
                        clamped_length(problem.window_left), clamped_length(problem.window_right));
  return math::max(0, band.end(q_len / 2) - band.begin(q_len / 2));
}

// Both edges of the window cut key tiles along one diagonal, which tile::has_fused_edges() takes,
// in sequences of the greatest lengths.
inline bool edges_fuse(const problem::Problem& problem, int k_tile) {
  if (problem.window_left < 0 || problem.window_right < 0) return false;
  const std::int64_t right = clamped_length(problem.window_right) + 1;
  const std::int64_t width = clamped_length(problem.window_left) + right;
  const std::int64_t diagonal = problem.top_left ? 0 : problem.max_k - problem.max_q;
  const std::int64_t visible = (diagonal + right) % k_tile;
  return width % k_tile == 0 && width < problem.max_k &&
         (visible == 0 || visible == 1 || visible == 1 - k_tile);
}

// The first row of the table that serves the problem. score_mod: needs_score_mod(), or what may
// become of it in a later run of a plan. vector_stores: out has the type of Q and takes 16 bytes at
// a time. Where rows must not depend on the longest sequence, it is not asked for.
inline int select_kernel(const problem::Problem& problem, bool score_mod, bool vector_stores) {
  const bool may_ask = may_ask_for_longest(problem);
  const std::int64_t keys = may_ask ? clamped_length(problem.max_k) : kAny;
  const std::int64_t visible = may_ask ? visible_keys(problem) : std::int64_t{kAny};
  const auto serves = [&](const KernelRow& row) {
    if (row.head_dim < problem.head_dim || row.value_dim < problem.value_dim) return false;
    if (has_block_mask(row.variant) != needs_block_mask(problem)) return false;
    if (has_block_mask(row.variant))
      return (!score_mod || has_score_mod(row.variant)) &&
             (row.q_tile <= 128 || (keys > 1024 && !problem.mask.present()));
    if (has_score_mod(row.variant) != score_mod) return false;
    if (!vector_stores && !row.config(false).scalar_stores) return false;
    if (row.variant == Variant::kFusedEdges && !(may_ask && edges_fuse(problem, row.k_tile)))
      return false;
    return score_mod || (row.max_keys >= keys && row.max_visible >= visible);
  };
  int row = 0;
  while (!serves(kKernels[row])) ++row;
  return row;
}

// The same of fp8, where scales may differ between blocks of rows.
inline bool needs_fp8_score_mod(const problem::Problem& problem) {
  return problem.has_score_mod() || problem.q_descale.row != 0 || problem.k_descale.row != 0 ||
         problem.v_descale.row != 0;
}

// The first row of the table for fp8 that serves a problem whose head dimensions it has.
inline int select_fp8_kernel(const problem::Problem& problem) {
  const auto serves = [&](const Fp8KernelRow& row) {
    return row.head_dim >= problem.head_dim && row.value_dim >= problem.value_dim &&
           row.score_mod == needs_fp8_score_mod(problem);
  };
  int row = 0;
  while (!serves(kFp8Kernels[row])) ++row;
  return row;
}

}  // namespace tilewise::cuda::sm90
