// A block of queries of the forward pass, and the state of its rows. The SIMD kernels (main_loop.h)
// and those of AMX (amx/forward.h) share it. SIMD lanes are queries.
#pragma once

#include "cpu/common/accumulate.h"
#include "cpu/common/schedule.h"
#include "cpu/common/score_mod.h"
#include "cpu/common/traffic.h"
#include "math/integer.h"
#include "math/softmax_state.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Keys of a tile. A tile of scores takes 24 KB and stays in the L1, where the product with V reads
// it once for every kGemmRows columns of V. Tiles of K and V of 128 x 128 fp32 take 128 KB of the
// L2.
inline constexpr std::int64_t kKeyTile = kMostPackedRows;

template <class E>
struct ForwardScratch {
  using T = SumOf<E>;
  E* q_panels;     // (panels, operand_count(D), kWidth)
  T* out_panels;   // (panels, rows of values, kWidth)
  T* max;          // (panels, kWidth)
  T* sum;          // (panels, kWidth)
  T* out_unit;     // (panels): the power of two by which the outputs are multiplied; 0: they are 0
  T* scores;       // (kKeyTile, kWidth)
  T* keep;         // (kKeyTile, kWidth), with dropout
  E* k_stage;      // (kKeyTile, operand_count(D))
  E* v_packed;     // (packed_size(Dv))
  float* v_stage;  // (kKeyTile, Dv), with fp8
  T* score_unit;   // (panels): the power of two by which the packed queries are multiplied
  MaskScratch<T> mask;
  typename BitsOf<T>::Word* seen;  // (kKeyTile, kWidth), where V is not finite: see TileSight
  Band* bands;
  std::int64_t out_panel;  // numbers of the output of one panel
};

// The part of the scratch that every forward kernel needs.
//
// value_rows: Dv, or more where a kernel writes whole tiles
template <class E, int kWidth>
ForwardScratch<E> take_row_scratch(const Problem& problem, std::int64_t panels,
                                   std::int64_t value_rows, Arena& arena) {
  using T = SumOf<E>;
  ForwardScratch<E> scratch = {};
  scratch.out_panel = value_rows * kWidth;
  scratch.out_panels = arena.take<T>(panels * value_rows * kWidth);
  scratch.max = arena.take<T>(panels * kWidth);
  scratch.sum = arena.take<T>(panels * kWidth);
  scratch.out_unit = arena.take<T>(panels);
  scratch.keep = arena.take<T>(problem.dropout_p > 0 ? kKeyTile * kWidth : 0);
  scratch.mask.low = arena.take<T>(kWidth);
  scratch.mask.high = arena.take<T>(kWidth);
  scratch.mask.visible = arena.take<std::uint8_t>(kKeyTile * kWidth);
  scratch.bands = arena.take<Band>(problem::max_bands(problem));
  return scratch;
}

template <class E, int kWidth>
ForwardScratch<E> take_forward_scratch(const Problem& problem, std::int64_t panels, Arena& arena) {
  ForwardScratch<E> scratch = take_row_scratch<E, kWidth>(
      problem, panels, math::round_up(problem.value_dim, kGemmRows), arena);
  scratch.q_panels = arena.take<E>(panels * operand_count<E>(problem.head_dim) * kWidth);
  scratch.scores = arena.take<SumOf<E>>(kKeyTile * kWidth);
  scratch.k_stage = arena.take<E>(kKeyTile * operand_count<E>(problem.head_dim));
  scratch.v_packed = arena.take<E>(packed_size<E>(problem.value_dim));
  scratch.v_stage =
      arena.take<float>(problem::is_fp8(problem.dtype) ? kKeyTile * problem.value_dim : 0);
  scratch.score_unit = arena.take<SumOf<E>>(panels);
  scratch.seen = arena.take<typename BitsOf<SumOf<E>>::Word>(kKeyTile * kWidth);
  return scratch;
}

// One block of queries: up to `panels` panels of kWidth rows of one head.
struct QueryBlock {
  HeadContext context;
  std::int64_t first;  // row of the sequence
  std::int64_t rows;
  math::KeyRange keys;  // the keys of a split, or all
};

// The keys that a block visits.
TILEWISE_INLINE math::KeyRange keys_of_block(const QueryBlock& block) {
  const math::KeyRange keys = keys_of_rows(block.context, block.first, block.rows);
  return {math::max(keys.begin, block.keys.begin), math::min(keys.end, block.keys.end)};
}

// The rows of one panel of a block, in a tensor of the query side.
TILEWISE_INLINE RowBlock panel_rows(const View& view, const QueryBlock& block, std::int64_t panel,
                                    std::int64_t lanes, std::int64_t width) {
  return {&view,
          block.context.sequence.batch,
          block.context.head,
          block.context.sequence.q_start + block.first + panel * lanes,
          math::min(lanes, block.rows - panel * lanes),
          width};
}

// Sets the state of every row of a panel to the empty state, without an output.
template <class E, int kWidth>
TILEWISE_INLINE void start_state(std::int64_t panel, const ForwardScratch<E>& scratch) {
  using T = SumOf<E>;
  const math::SoftmaxState<T> empty = math::empty_state<T>();
  scratch.out_unit[panel] = T(0);
  for (int lane = 0; lane < kWidth; ++lane) {
    scratch.max[panel * kWidth + lane] = empty.max;
    scratch.sum[panel * kWidth + lane] = empty.sum;
  }
}
template <class E>
TILEWISE_INLINE void clear_output(std::int64_t panel, const ForwardScratch<E>& scratch) {
  using T = SumOf<E>;
  T* const out = scratch.out_panels + panel * scratch.out_panel;
  for (std::int64_t i = 0; i < scratch.out_panel; ++i) out[i] = T(0);
}

// Traffic of Q and of the outputs of a block. Row statistics are not counted (see
// forward/traffic.h).
TILEWISE_INLINE void count_query_traffic(const RunContext& run, const QueryBlock& block) {
  const Problem& problem = *block.context.problem;
  count_traffic(run, block.rows * problem.head_dim * problem::dtype_size(problem.q.dtype), 0);
}
TILEWISE_INLINE void count_output_traffic(const RunContext& run, const QueryBlock& block) {
  const Problem& problem = *block.context.problem;
  const std::int64_t bytes =
      block.rows * problem.value_dim * problem::dtype_size(problem.out.dtype);
  count_traffic(run, problem.accumulate ? bytes : 0, bytes);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
