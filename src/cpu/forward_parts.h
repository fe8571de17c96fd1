// What the forward bodies share (forward.h: multiply-adds of any arithmetic; pair_forward.h: bf16
// pairs on the matrix unit): the state of a block of queries, the softmax between the products, the
// end of a row. SIMD lanes are queries.
#pragma once

#include "cpu/accumulate.h"
#include "cpu/schedule.h"
#include "math/integer.h"
#include "math/softmax_state.h"

namespace tilewise::cpu::TILEWISE_TARGET {

using problem::Status;

// Keys of a tile: a tile of scores is 24 KB and stays in the L1, where the product with V reads it
// once for every kProductRows columns of V; K and V tiles of 128 x 128 fp32 are 128 KB of the L2.
inline constexpr std::int64_t kKeyTile = kMostPackedRows;

template <class E>
struct ForwardScratch {
  using T = SumOf<E>;
  E* q_panels;    // (panels, operands(D), kWidth)
  T* out_panels;  // (panels, rows of values, kWidth)
  T* max;         // (panels, kWidth)
  T* sum;         // (panels, kWidth)
  T* scores;      // (kKeyTile, kWidth)
  T* keep;        // (kKeyTile, kWidth), with dropout
  E* k_stage;     // (kKeyTile, operands(D))
  E* v_packed;    // (packed_size(Dv))
  MaskScratch<T> mask;
  CarefulScratch careful;
  Band* bands;
  std::int64_t out_panel;  // numbers of one out panel
};

// What every forward body needs of it.  value_rows: Dv, or more where a kernel writes whole tiles.
template <class E, int kWidth>
ForwardScratch<E> take_row_scratch(const Problem& problem, std::int64_t panels,
                                   std::int64_t value_rows, Arena& arena) {
  using T = SumOf<E>;
  ForwardScratch<E> scratch = {};
  scratch.out_panel = value_rows * kWidth;
  scratch.out_panels = arena.take<T>(panels * value_rows * kWidth);
  scratch.max = arena.take<T>(panels * kWidth);
  scratch.sum = arena.take<T>(panels * kWidth);
  scratch.keep = arena.take<T>(problem.dropout_p > 0 ? kKeyTile * kWidth : 0);
  scratch.mask.low = arena.take<T>(kWidth);
  scratch.mask.high = arena.take<T>(kWidth);
  scratch.mask.visible = arena.take<std::uint8_t>(kKeyTile * kWidth);
  scratch.bands = arena.take<Band>(problem::max_bands(problem));
  return scratch;
}

template <class E, int kWidth>
ForwardScratch<E> take_forward_scratch(const Problem& problem, std::int64_t panels, Arena& arena) {
  ForwardScratch<E> scratch =
      take_row_scratch<E, kWidth>(problem, panels, whole_product_rows(problem.value_dim), arena);
  scratch.q_panels = arena.take<E>(panels * operands<E>(problem.head_dim) * kWidth);
  scratch.scores = arena.take<SumOf<E>>(kKeyTile * kWidth);
  scratch.k_stage = arena.take<E>(kKeyTile * operands<E>(problem.head_dim));
  scratch.v_packed = arena.take<E>(packed_size<E>(problem.value_dim));
  scratch.careful.seen = arena.take<std::uint8_t>(kKeyTile * kWidth);
  scratch.careful.odd_a = arena.take<std::uint8_t>(kKeyTile);
  return scratch;
}

// One q block: up to `panels` panels of kWidth rows of one head.
struct QueryBlock {
  HeadContext context;
  std::int64_t first;  // row of the sequence
  std::int64_t rows;
  math::KeyRange keys;  // those that take part: of a split, or all
};

// The maximum of a column of registers and `start`, in four chains: one would wait four cycles for
// each score.
template <class T, int kWidth>
TILEWISE_INLINE Vec<T> column_maximum(const T* column, std::int64_t rows, Vec<T> start) {
  Vec<T> chains[4] = {start, start, start, start};
  std::int64_t j = 0;
  for (; j + 4 <= rows; j += 4) {
    for (int i = 0; i < 4; ++i)
      chains[i] = maximum(Vec<T>::load(column + (j + i) * kWidth), chains[i]);
  }
  for (; j < rows; ++j) chains[0] = maximum(Vec<T>::load(column + j * kWidth), chains[0]);
  return maximum(maximum(chains[0], chains[1]), maximum(chains[2], chains[3]));
}

// Folds a tile of scores into the state of a panel and turns it into unnormalised probabilities.
// Gives the factor that the panel's output so far must be multiplied by. Of kWidth lanes, the first
// kColumns registers take part.
template <class T, int kColumns, int kWidth>
TILEWISE_INLINE void softmax_step(std::int64_t keys, math::ExponentUnit<Vec<T>> unit, T* scores,
                                  T* max, T* sum, Vec<T>* rescale) {
  constexpr int kLanes = Vec<T>::kLanes;
  for (int n = 0; n < kColumns; ++n) {
    T* const column = scores + n * kLanes;
    const Vec<T> old_max = Vec<T>::load(max + n * kLanes);
    const Vec<T> new_max = column_maximum<T, kWidth>(column, keys, old_max);
    const Vec<T> anchor = math::anchor(new_max);
    rescale[n] = math::weight(old_max, anchor, unit);
    Vec<T> total(T(0));  // of the tile by itself: short sums lose less
    for (std::int64_t j = 0; j < keys; ++j) {
      const Vec<T> weight = math::weight(Vec<T>::load(column + j * kWidth), anchor, unit);
      weight.store(column + j * kWidth);
      total = total + weight;
    }
    new_max.store(max + n * kLanes);
    multiply_add(Vec<T>::load(sum + n * kLanes), rescale[n], total).store(sum + n * kLanes);
  }
}

template <class T, int kWidth>
void apply_dropout(const Frame& frame, const T* keep, T* weights) {
  for (std::int64_t t = 0; t < frame.t_count; ++t) {
    for (std::int64_t lane = 0; lane < frame.lane_count; ++lane)
      weights[t * kWidth + lane] *= keep[t * kWidth + lane];
  }
}

// The keys that rows [first, first + rows) may see through any band.
TILEWISE_INLINE math::KeyRange keys_of_rows(const HeadContext& context, std::int64_t first,
                                            std::int64_t rows) {
  math::KeyRange range = {context.sequence.k_len, 0};
  for (std::int64_t s = 0; s < context.band_count; ++s) {
    const math::KeyRange of_band = math::tile_keys(context.bands[s], first, first + rows);
    if (of_band.begin >= of_band.end) continue;
    range.begin = math::min(range.begin, of_band.begin);
    range.end = math::max(range.end, of_band.end);
  }
  return {math::max(range.begin, 0), math::min(range.end, context.sequence.k_len)};
}

// The keys that all of them see through one band, that which shows the most.
TILEWISE_INLINE math::KeyRange common_keys_of_rows(const HeadContext& context, std::int64_t first,
                                                   std::int64_t rows) {
  math::KeyRange range = {0, 0};
  for (std::int64_t s = 0; s < context.band_count; ++s) {
    const math::KeyRange of_band = math::common_keys(context.bands[s], first, first + rows);
    if (of_band.end - of_band.begin > range.end - range.begin) range = of_band;
  }
  return range;
}

// The keys that a block visits.
TILEWISE_INLINE math::KeyRange keys_of_block(const QueryBlock& block) {
  const math::KeyRange keys = keys_of_rows(block.context, block.first, block.rows);
  return {math::max(keys.begin, block.keys.begin), math::min(keys.end, block.keys.end)};
}

// Rows of a query-side tensor that are one panel of a block.
TILEWISE_INLINE RowBlock panel_rows(const View& view, const QueryBlock& block, std::int64_t panel,
                                    std::int64_t lanes, std::int64_t width) {
  return {&view,
          block.context.sequence.batch,
          block.context.head,
          block.context.sequence.q_start + block.first + panel * lanes,
          math::min(lanes, block.rows - panel * lanes),
          width};
}

// The empty state for every row of a panel, which has no output.
template <class E, int kWidth>
TILEWISE_INLINE void start_state(std::int64_t panel, const ForwardScratch<E>& scratch) {
  using T = SumOf<E>;
  const math::SoftmaxState<T> empty = math::empty_state<T>();
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

// The rows of K and V that come after those of a tile: to be asked for while it is computed.
struct NextTile {
  RowBlock k;
  RowBlock v;
};
TILEWISE_INLINE NextTile next_tile(const HeadContext& context, std::int64_t first,
                                   std::int64_t end) {
  const Problem& problem = *context.problem;
  const std::int64_t row = context.sequence.k_start + first;
  const std::int64_t count = math::clamp(end - first, 0, kKeyTile);
  const std::int64_t batch = context.sequence.batch;
  return {{&problem.k, batch, context.kv_head(), row, count, problem.head_dim},
          {&problem.v, batch, context.kv_head(), row, count, problem.value_dim}};
}

// Normalises, joins the sink, stores O and LSE.
template <class E, int kWidth>
void store_outputs(const QueryBlock& block, const ForwardScratch<E>& scratch) {
  using T = SumOf<E>;
  const HeadContext& context = block.context;
  const Problem& problem = *context.problem;
  const T sink = problem.sink.present()
                     ? static_cast<T>(static_cast<const float*>(
                           problem.sink.data)[problem.sink.offset(0, context.head, 0)])
                     : -math::Limits<T>::kInfinity;
  for (std::int64_t panel = 0; panel * kWidth < block.rows; ++panel) {
    const std::int64_t row = context.sequence.q_start + block.first + panel * kWidth;
    const std::int64_t lanes = math::min(kWidth, block.rows - panel * kWidth);
    T scale[kWidth] = {};
    const T natural = ScoreUnits<T>(problem).natural;
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      const std::int64_t at = panel * kWidth + lane;
      const math::Finalised<T> closed =
          math::finalise(math::SoftmaxState<T>{scratch.max[at] * natural, scratch.sum[at]}, sink);
      scale[lane] = closed.scale;
      if (problem.lse.present()) {
        store_statistic(problem.lse, context.sequence.batch, context.head, row + lane, closed.lse);
      }
    }
    unpack_panel<T, kWidth>(
        {&problem.out, context.sequence.batch, context.head, row, lanes, problem.value_dim}, scale,
        scratch.out_panels + panel * scratch.out_panel);
  }
}

// Weights that are bf16 in a product are dropped without the factor of those that stay: it would be
// rounded on each the same way, a weight of 1 to 0.16 % less. The sums get it.
template <class E>
inline constexpr bool kRoundsWeights = !std::is_same_v<E, SumOf<E>>;

template <class E, int kWidth>
void scale_kept(const QueryBlock& block, const ForwardScratch<E>& scratch) {
  using T = SumOf<E>;
  const Problem& problem = *block.context.problem;
  if (problem.dropout_p == 0) return;
  const Vec<T> factor(kept_factor<T>(problem));
  const std::int64_t count = math::ceil_div(block.rows, kWidth) * scratch.out_panel;
  for (std::int64_t i = 0; i < count; i += Vec<T>::kLanes) {
    T* const at = scratch.out_panels + i;
    (Vec<T>::load(at) * factor).store(at);
  }
}

template <class E, int kWidth>
bool block_is_finite(const QueryBlock& block, const ForwardScratch<E>& scratch) {
  const std::int64_t value_dim = block.context.problem->value_dim;
  for (std::int64_t panel = 0; panel * kWidth < block.rows; ++panel) {
    const std::int64_t lanes = math::min(kWidth, block.rows - panel * kWidth);
    if (!all_finite<SumOf<E>, kWidth>(scratch.out_panels + panel * scratch.out_panel, value_dim,
                                      lanes))
      return false;
  }
  return true;
}

// What a block reads and writes besides K and V. Row statistics are not counted (traffic.h).
TILEWISE_INLINE void count_query_traffic(const RunContext& run, const QueryBlock& block) {
  const Problem& problem = *block.context.problem;
  count_traffic(run, block.rows * problem.head_dim * problem::dtype_size(problem.q.dtype), 0);
}
TILEWISE_INLINE void count_output_traffic(const RunContext& run, const QueryBlock& block) {
  const Problem& problem = *block.context.problem;
  count_traffic(run, 0, block.rows * problem.value_dim * problem::dtype_size(problem.out.dtype));
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
