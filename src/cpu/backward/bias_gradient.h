// dBias, dSink and the gradients of ALiBi slopes. A work item of dBias owns one tile of the bias.
// It sums up dS over all dimensions in which the tile is broadcast (batches, heads, rows, columns),
// in that order, and writes the tile once.
#pragma once

#include "cpu/backward/recompute.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

template <class T>
struct BiasScratch {
  T* sums;        // (kGradientTile, kWidth): dS of the tile, lanes = queries
  T* q_panel;     // (D, kWidth)
  T* dout_panel;  // (Dv, kWidth)
  GradientScratch<T> gradient;
};

template <class T, int kWidth>
BiasScratch<T> take_bias_scratch(const Problem& problem, Arena& arena) {
  BiasScratch<T> scratch;
  scratch.sums = arena.take<T>(kGradientTile * kWidth);
  scratch.q_panel = arena.take<T>(problem.head_dim * kWidth);
  scratch.dout_panel = arena.take<T>(problem.value_dim * kWidth);
  scratch.gradient = take_gradient_scratch<T, kWidth>(problem, arena);
  return scratch;
}

// The number of bias tiles along rows and columns. A broadcast dimension has one tile.
struct BiasTiles {
  std::int64_t row_tiles;
  std::int64_t column_tiles;
  std::int64_t count;
};
template <int kWidth>
TILEWISE_INLINE BiasTiles bias_tiles(const Problem& problem) {
  const std::int64_t* const shape = problem.bias_shape;
  const std::int64_t rows = math::ceil_div(shape[2], kWidth);
  const std::int64_t columns = math::ceil_div(shape[3], kGradientTile);
  return {rows, columns, shape[0] * shape[1] * rows * columns};
}

// Stores a sum in fp32, or in fp64, or adds it.
TILEWISE_INLINE void store_sum(const View& view, std::int64_t at, bool adds, double sum) {
  if (view.dtype == TILEWISE_FP64) {
    double* const to = static_cast<double*>(view.data) + at;
    *to = adds ? *to + sum : sum;
  } else {
    float* const to = static_cast<float*>(view.data) + at;
    *to = static_cast<float>(adds ? static_cast<double>(*to) + sum : sum);
  }
}

// The range of a dimension that one element, or one tile, of the bias stands for.
TILEWISE_INLINE math::KeyRange broadcast_range(std::int64_t extent, std::int64_t full,
                                               std::int64_t index, std::int64_t step) {
  if (extent == 1) return {0, full};
  return {index * step, math::min(index * step + step, full)};
}

// The data that the tiles of a head share: delta, and the units of its operands. V is read in place
// where it is of ordinary size; dO then has its unit.
template <class T>
struct BiasHead {
  View delta;
  GradientUnits<T> units;

  TILEWISE_INLINE T moved() const {
    const T most = exact_power<T>(Exponents<T>::kLift);
    return units.v_panel < T(1) ? T(1) : math::minimum(units.v_panel, most);
  }
  TILEWISE_INLINE T dout_panel() const { return units.dout_rows * moved(); }
  TILEWISE_INLINE T v_rows() const { return units.v_panel / moved(); }
};

// Packs rows of Q (with the sign of the scale) and of dO.
template <class T, int kWidth>
void pack_query_panel(const HeadContext& context, const BiasHead<T>& head, std::int64_t first,
                      std::int64_t lanes, T* q_panel, T* dout_panel) {
  const Problem& problem = *context.problem;
  const std::int64_t row = context.sequence.q_start + first;
  pack_panel<T, kWidth>(
      {&problem.q, context.sequence.batch, context.head, row, lanes, problem.head_dim},
      ScoreScaling<T>(problem).sign * head.units.q_rows, q_panel);
  pack_panel<T, kWidth>(
      {&problem.dout, context.sequence.batch, context.head, row, lanes, problem.value_dim},
      head.dout_panel(), dout_panel);
}

// Calls add(t, lane, dS) for the keys `keys`, along t, and the queries `rows` of one head, at most
// one tile.
template <class T, int kColumns, class Add>
void visit_bias_tile(const HeadContext& context, const BiasHead<T>& head, math::KeyRange rows,
                     math::KeyRange keys, const BiasScratch<T>& scratch, const Add& add) {
  constexpr int kWidth = kColumns * Vec<T>::kLanes;
  const Problem& problem = *context.problem;
  const TileBounds bounds = {rows.begin, rows.end - rows.begin, keys.begin, keys.end - keys.begin};
  const TileClass tile_class = classify(context, Lanes::kQueries, bounds);
  if (tile_class == TileClass::kEmpty) return;
  const std::int64_t row = context.sequence.k_start + keys.begin;
  const Rows<T> k = stage_scaled_rows<T>({&problem.k, context.sequence.batch, context.kv_head(),
                                          row, bounds.t_count, problem.head_dim},
                                         head.units.k_panel, scratch.gradient.stage_a);
  const Rows<T> v = stage_scaled_rows<T>({&problem.v, context.sequence.batch, context.kv_head(),
                                          row, bounds.t_count, problem.value_dim},
                                         head.v_rows(), scratch.gradient.stage_b);
  load_row_statistics<T>(context, {head.delta, head.units.v_of_delta(), head.units.dout_rows},
                         rows.begin, bounds.lane_count, kWidth, scratch.gradient);
  recompute_tile<T, Lanes::kQueries, kColumns, kWidth>(
      context, bounds, tile_class, all_active<kColumns>(bounds.t_count),
      {k, v, scratch.q_panel, scratch.dout_panel, nullptr, &head.units, true}, scratch.gradient);
  const GradientFactor<T> factor(1, head.units, T(1));
  for (std::int64_t t = 0; t < bounds.t_count; ++t) {
    for (std::int64_t lane = 0; lane < bounds.lane_count; ++lane) {
      add(t, lane,
          scratch.gradient.tile.gradients[t * kWidth + lane] * factor.first * factor.second);
    }
  }
}

// Calls visit(context, rows, keys) for the tiles of the queries `rows` and the keys `keys` of one
// head that may see each other, with the context of their bands and their queries packed.
template <class T, int kColumns, class Visit>
void for_each_bias_tile(const HeadContext& context, const BiasHead<T>& head, math::KeyRange rows,
                        math::KeyRange keys, const BiasScratch<T>& scratch, const Visit& visit) {
  constexpr int kWidth = kColumns * Vec<T>::kLanes;
  rows.end = math::min(rows.end, context.sequence.q_len);
  for (std::int64_t first = rows.begin; first < rows.end; first += kWidth) {
    const std::int64_t lanes = math::min(kWidth, rows.end - first);
    const math::KeyRange own_rows = {first, first + lanes};
    bool packed = false;
    for (std::int64_t tile = keys.begin; tile < keys.end; tile += kGradientTile) {
      const math::KeyRange own_keys = {tile, math::min(tile + kGradientTile, keys.end)};
      const HeadContext own = narrowed(context, own_rows, own_keys, scratch.gradient.bands);
      const math::KeyRange seen = keys_of_rows(own, first, lanes);
      const std::int64_t end = math::min(own_keys.end, seen.end);
      if (tile >= end || seen.begin >= own_keys.end) continue;
      if (!packed)
        pack_query_panel<T, kWidth>(own, head, first, lanes, scratch.q_panel, scratch.dout_panel);
      packed = true;
      visit(own, own_rows, math::KeyRange{tile, end});
    }
  }
}

// Adds dS of all queries and keys of one head that the bias tile stands for.
template <class T, int kColumns>
void add_bias_head(const HeadContext& context, const BiasHead<T>& head, math::KeyRange rows,
                   math::KeyRange keys, const BiasScratch<T>& scratch) {
  constexpr int kWidth = kColumns * Vec<T>::kLanes;
  for_each_bias_tile<T, kColumns>(
      context, head, rows, keys, scratch,
      [&](const HeadContext& own, math::KeyRange own_rows, math::KeyRange own_keys) {
        visit_bias_tile<T, kColumns>(own, head, own_rows, own_keys, scratch,
                                     [&](std::int64_t t, std::int64_t lane, T gradient) {
                                       scratch.sums[t * kWidth + lane] += gradient;
                                     });
      });
}

// Returns the sum over all queries and keys of one head of dS times the derivative of the ALiBi
// term, in double, in the order of the tiles.
template <class T, int kColumns>
double slope_gradient_of_head(const HeadContext& context, const BiasHead<T>& head,
                              const BiasScratch<T>& scratch) {
  double sum = 0;
  const Sequence& sequence = context.sequence;
  for_each_bias_tile<T, kColumns>(
      context, head, {0, sequence.q_len}, {0, sequence.k_len}, scratch,
      [&](const HeadContext& own, math::KeyRange rows, math::KeyRange keys) {
        const std::int64_t first = rows.begin + sequence.diagonal - keys.begin;
        visit_bias_tile<T, kColumns>(
            own, head, rows, keys, scratch, [&](std::int64_t t, std::int64_t lane, T gradient) {
              const double distance = static_cast<double>(first + lane - t);
              sum += static_cast<double>(gradient) * math::alibi_derivative(distance);
            });
      });
  return sum;
}

// Stores the gradient of slope number `number` of (B, H), or (H) for all batches.
template <class T, int kColumns>
void slope_item(const Problem& problem, const BlockSchedule& shared, const View& delta,
                const GradientUnits<T>* units, std::int64_t number, const BiasScratch<T>& scratch) {
  const std::int64_t head = number % problem.heads;
  const std::int64_t own = number / problem.heads;
  const math::KeyRange batches =
      problem.slopes_per_batch ? math::KeyRange{own, own + 1} : math::KeyRange{0, problem.batch};
  double sum = 0;
  for (std::int64_t b = batches.begin; b < batches.end; ++b) {
    const HeadContext context =
        head_context(problem, shared.sequences[b], head, shared.bands, scratch.gradient.bands);
    sum += slope_gradient_of_head<T, kColumns>(
        context, {delta, units[b * problem.kv_heads + context.kv_head()]}, scratch);
  }
  store_sum(problem.dalibi_slopes, problem.dalibi_slopes.offset(own, head, 0), problem.accumulate,
            sum);
}

// Sums over broadcast rows and columns, and stores the tile in the type of dBias, or adds it with
// `accumulate`.
template <class T, int kWidth>
void store_bias_tile(const Problem& problem, std::int64_t b, std::int64_t h, math::KeyRange rows,
                     math::KeyRange keys, T* sums) {
  const bool one_row = problem.bias_shape[2] == 1;
  const bool one_column = problem.bias_shape[3] == 1;
  const bool adds = problem.accumulate;
  const std::int64_t row_count = one_row ? 1 : rows.end - rows.begin;
  const std::int64_t column_count = one_column ? 1 : keys.end - keys.begin;
  for (std::int64_t t = 1; one_column && t < kGradientTile; ++t) {
    for (int lane = 0; lane < kWidth; ++lane) sums[lane] += sums[t * kWidth + lane];
  }
  for (std::int64_t t = 0; t < column_count; ++t) {
    for (int lane = 1; one_row && lane < kWidth; ++lane)
      sums[t * kWidth] += sums[t * kWidth + lane];
  }
  with_storage(problem.dbias.dtype, [&](auto storage) {
    using S = decltype(storage);
    for (std::int64_t i = 0; i < row_count; ++i) {
      for (std::int64_t t = 0; t < column_count; ++t) {
        const std::int64_t at = problem.dbias.offset(b, h, one_row ? 0 : rows.begin + i,
                                                     one_column ? 0 : keys.begin + t);
        S* const to = static_cast<S*>(problem.dbias.data) + at;
        const T sum = sums[t * kWidth + i];
        math::store(adds ? math::load<T>(*to) + sum : sum, to);
      }
    }
  });
}

template <class T, int kColumns>
void bias_item(const Problem& problem, const BlockSchedule& shared, const View& delta,
               const GradientUnits<T>* units, std::int64_t number, const BiasScratch<T>& scratch) {
  constexpr int kWidth = kColumns * Vec<T>::kLanes;
  const BiasTiles tiles = bias_tiles<kWidth>(problem);
  const std::int64_t* const shape = problem.bias_shape;
  const std::int64_t column = number % tiles.column_tiles;
  const std::int64_t row = number / tiles.column_tiles % tiles.row_tiles;
  const std::int64_t h = number / (tiles.column_tiles * tiles.row_tiles) % shape[1];
  const std::int64_t b = number / (tiles.column_tiles * tiles.row_tiles * shape[1]);
  const math::KeyRange rows = broadcast_range(shape[2], problem.max_q, row, kWidth);
  const math::KeyRange keys = broadcast_range(shape[3], problem.max_k, column, kGradientTile);
  const math::KeyRange batches = broadcast_range(shape[0], problem.batch, b, 1);
  const math::KeyRange heads = broadcast_range(shape[1], problem.heads, h, 1);
  for (std::int64_t i = 0; i < kGradientTile * kWidth; ++i) scratch.sums[i] = T(0);
  for (std::int64_t batch = batches.begin; batch < batches.end; ++batch) {
    for (std::int64_t head = heads.begin; head < heads.end; ++head) {
      const HeadContext context = head_context(problem, shared.sequences[batch], head, shared.bands,
                                               scratch.gradient.bands);
      add_bias_head<T, kColumns>(context,
                                 {delta, units[batch * problem.kv_heads + context.kv_head()]}, rows,
                                 keys, scratch);
    }
  }
  store_bias_tile<T, kWidth>(problem, b, h, rows, keys, scratch.sums);
}

// dSink = -sum over rows of exp(sink - LSE) * delta. It is summed up in double, in the order of the
// rows.
//
// units: (B, kv heads)
template <class T>
void sink_gradient(const Problem& problem, const BlockSchedule& shared, const View& delta,
                   const GradientUnits<T>* units, std::int64_t head) {
  const double sink = static_cast<const float*>(problem.sink.data)[problem.sink.offset(0, head, 0)];
  double sum = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence& sequence = shared.sequences[b];
    const double unit =
        static_cast<double>(units[b * problem.kv_heads + head / problem.group].delta);
    for (std::int64_t i = 0; i < sequence.q_len; ++i) {
      const std::int64_t row = sequence.q_start + i;
      const double lse = load_statistic<double>(problem.lse, b, head, row);
      if (sink == -math::Limits<double>::kInfinity) continue;
      const double of_row = load_statistic<double>(delta, b, head, row);
      sum += math::exp2((sink - lse) * math::kLog2E) * of_row / unit;
    }
  }
  store_sum(problem.dsink, problem.dsink.offset(0, head, 0), problem.accumulate, -sum);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
