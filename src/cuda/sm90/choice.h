// Which of the Hopper kernels a problem takes. Without CUDA's headers: a test asks without a GPU.
#pragma once

#include "cuda/sm90/config.h"
#include "cuda/tile/schedule.h"
#include "cuda/work.h"
#include "math/integer.h"
#include "problem/problem.h"

namespace tilewise::cuda::sm90 {

// Numbers of keys and of rows as kernels count them.
inline std::int32_t in_reach(std::int64_t x) {
  return static_cast<std::int32_t>(math::min(x, tile::kLongest));
}

// The plain kernel multiplies inside of the exponent, which needs a positive factor.
inline bool is_general(const problem::Problem& problem) {
  constexpr double kLeastScale = 1e-30;
  return problem.general_scores() || problem.scale < kLeastScale;
}

// Keys that the middle row of the longest sequence sees: under a causal mask, the mean of all.
inline std::int64_t seen_keys(const problem::Problem& problem) {
  const std::int32_t k_len = in_reach(problem.max_k);
  const std::int32_t q_len = in_reach(problem.max_q);
  const tile::Edges edges =
      tile::window_edges(k_len, problem.top_left ? 0 : k_len - q_len, in_reach(problem.window_left),
                         in_reach(problem.window_right));
  return math::max(0, edges.end(q_len / 2) - edges.begin(q_len / 2));
}

// Both edges of a window cut tiles of keys along the same diagonal, one that tile::is_folded()
// takes: in sequences of the greatest lengths.
inline bool folds(const problem::Problem& problem, int k_tile) {
  if (problem.window_left < 0 || problem.window_right < 0) return false;
  const std::int64_t right = in_reach(problem.window_right) + 1;
  const std::int64_t width = in_reach(problem.window_left) + right;
  const std::int64_t diagonal = problem.top_left ? 0 : problem.max_k - problem.max_q;
  const std::int64_t seen = (diagonal + right) % k_tile;
  return width % k_tile == 0 && width < problem.max_k &&
         (seen == 0 || seen == 1 || seen == 1 - k_tile);
}

struct Choice {
  int row;  // of kTiles
  KernelConfig config;
};

// general: is_general(), or what may become of it. wide_out: rows of out are of the type of Q, and
// take 16 bytes at a time.
inline Choice choose(const problem::Problem& problem, bool general, bool wide_out) {
  const bool asks = may_ask_for_longest(problem);
  const int row =
      tile_row(problem.head_dim, problem.value_dim, asks ? in_reach(problem.max_k) : kAnyKeys,
               asks ? seen_keys(problem) : std::int64_t{kAnyKeys});
  const KernelConfig config = config_of(row, problem.dtype == TILEWISE_FP16, general);
  if (!config.narrow && !wide_out) return {row, narrow(config)};
  if (row == kFoldingRow && asks && !general && folds(problem, config.k_tile))
    return {row, folding(config)};
  return {row, config};
}

}  // namespace tilewise::cuda::sm90
