// The gradients of what rows, heads or sequences share: dbias, dsink and dalibi_slopes. One work
// item owns a piece of the output and loops, in one fixed order, over everything that the piece was
// broadcast to, recomputing the probabilities. Nothing of size Sq x Sk is stored, and no two
// workers add to one number. Every rung uses these.
#pragma once

#include "math/integer.h"
#include "problem/arena.h"
#include "reference/head.h"

namespace tilewise::reference {

using problem::Arena;
using problem::Checked;

inline constexpr std::int64_t kGradientColumns = 256;  // columns of dbias that a work item owns

template <class T>
struct GradientBuffers {
  T* query;      // (D)
  T* key;        // (D)
  T* value;      // (Dv)
  T* dout;       // (Dv)
  T* out;        // (Dv)
  double* sums;  // (kGradientColumns), double: one number may sum B * H * Sq * Sk terms

  static GradientBuffers carve(const problem::Problem& problem, Arena& arena) {
    const Checked head_dim = {problem.head_dim};
    const Checked value_dim = {problem.value_dim};
    GradientBuffers buffers;
    buffers.query = arena.take<T>(head_dim);
    buffers.key = arena.take<T>(head_dim);
    buffers.value = arena.take<T>(value_dim);
    buffers.dout = arena.take<T>(value_dim);
    buffers.out = arena.take<T>(value_dim);
    buffers.sums = arena.take<double>(Checked{kGradientColumns});
    return buffers;
  }
};

inline std::int64_t bias_column_blocks(const problem::Problem& problem) {
  return math::ceil_div(problem.bias_shape[3], kGradientColumns);
}
inline std::int64_t bias_items(const problem::Problem& problem) {
  if (!problem.dbias.present()) return 0;
  return problem.bias_shape[0] * problem.bias_shape[1] * problem.bias_shape[2] *
         bias_column_blocks(problem);
}
inline std::int64_t slope_items(const problem::Problem& problem) {
  if (!problem.dalibi_slopes.present()) return 0;
  return (problem.slopes_per_batch ? problem.batch : 1) * problem.heads;
}
inline std::int64_t gradient_items(const problem::Problem& problem) {
  return bias_items(problem) + (problem.dsink.present() ? problem.heads : 0) + slope_items(problem);
}

template <class T, class Counter>
struct GradientWorker {
  const problem::Problem& problem;
  const problem::Sequence* sequences;  // (B)
  math::Band* bands;                   // (max_bands)
  std::uint8_t* visible;               // (kGradientColumns)
  GradientBuffers<T> buffers;
  Memory<T, Counter> memory;

  void run(std::int64_t item) const {
    const std::int64_t bias = bias_items(problem);
    const std::int64_t slopes = slope_items(problem);
    if (item < bias) return run_bias(item);
    item - bias < slopes ? run_slope(item - bias) : run_sink(item - bias - slopes);
  }

 private:
  // One query row of one sequence and head; its operands are in the buffers.
  struct QueryRow {
    const problem::Sequence& sequence;
    std::int64_t head;
    std::int64_t row;
    T lse;
    T delta;
  };

  QueryRow load_query_row(const problem::Sequence& sequence, std::int64_t head,
                          std::int64_t row) const {
    const std::int64_t token = sequence.q_start + row;
    const Rows rows = {sequence.batch, head, token, 1};
    memory.load(problem.out, rows, problem.value_dim, buffers.out);
    memory.load(problem.dout, rows, problem.value_dim, buffers.dout);
    const T lse = load_element<T>(problem.lse, problem.lse.offset(sequence.batch, head, token));
    T delta = dot(buffers.out, buffers.dout, problem.value_dim);
    if (problem.dlse.present())
      delta -= load_element<T>(problem.dlse, problem.dlse.offset(sequence.batch, head, token));
    return {sequence, head, row, lse, delta};
  }

  // Computes the piece (batch, head, row, column block) of dbias; an extent of 1 means that the
  // piece gathers all of that dimension.
  void run_bias(std::int64_t item) const {
    const std::int64_t blocks = bias_column_blocks(problem);
    const std::int64_t* shape = problem.bias_shape;
    const std::int64_t first_column = item % blocks * kGradientColumns;
    const std::int64_t index[3] = {item / blocks / shape[2] / shape[1],
                                   item / blocks / shape[2] % shape[1], item / blocks % shape[2]};
    const std::int64_t columns = math::min(kGradientColumns, shape[3] - first_column);
    set_zero(buffers.sums, columns);
    const KeyRange batches = owned(shape[0], index[0], problem.batch);
    const KeyRange heads = owned(shape[1], index[1], problem.heads);
    for (std::int64_t b = batches.begin; b < batches.end; ++b) {
      const KeyRange rows = clipped(owned(shape[2], index[2], problem.max_q), sequences[b].q_len);
      const bool broadcast = shape[3] == 1;
      const std::int64_t k_len = sequences[b].k_len;
      const KeyRange keys = {first_column,
                             broadcast ? k_len : math::min(first_column + columns, k_len)};
      for (std::int64_t h = heads.begin; h < heads.end; ++h) {
        add_head(sequences[b], h, rows, keys, [&](std::int64_t, std::int64_t key, double gradient) {
          buffers.sums[broadcast ? 0 : key - first_column] += gradient;
        });
      }
    }
    const problem::View& dbias = problem.dbias;
    for (std::int64_t c = 0; c < columns; ++c) {
      store_sum(dbias, dbias.offset(index[0], index[1], index[2], first_column + c),
                buffers.sums[c]);
    }
    memory.counter()->write(columns, problem::dtype_size(dbias.dtype));
  }

  // Stores a sum, or adds it with `accumulate`.
  void store_sum(const problem::View& view, std::int64_t at, double sum) const {
    store_element(view, at, problem.accumulate ? load_element<double>(view, at) + sum : sum);
  }

  static KeyRange owned(std::int64_t extent, std::int64_t index, std::int64_t full) {
    return extent == 1 ? KeyRange{0, full} : KeyRange{index, index + 1};
  }
  static KeyRange clipped(KeyRange range, std::int64_t length) {
    return {range.begin, math::min(range.end, length)};
  }

  // Calls add(row, key, dS) for the visible pairs of rows and keys of a head.
  template <class Add>
  void add_head(const problem::Sequence& sequence, std::int64_t head_number, KeyRange rows,
                KeyRange columns, const Add& add) const {
    const std::int64_t band_count = problem::sequence_bands(problem, sequence, head_number, bands);
    const Head<T, Counter> head(problem, sequence, head_number, {bands, band_count, visible},
                                memory.counter());
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      memory.load(problem.q, {sequence.batch, head_number, sequence.q_start + row, 1},
                  problem.head_dim, buffers.query);
      const QueryRow query = load_query_row(sequence, head_number, row);
      for (std::int64_t j = columns.begin; j < columns.end; j += kGradientColumns) {
        const KeyRange keys = {j, math::min(j + kGradientColumns, columns.end)};
        head.mark_visible(row, keys);
        add_keys(head, query, keys, add);
      }
    }
  }

  template <class Add>
  void add_keys(const Head<T, Counter>& head, const QueryRow& query, KeyRange keys,
                const Add& add) const {
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      if (!head.visible(keys, j)) continue;
      const Rows key_row = {query.sequence.batch, query.head / problem.group,
                            query.sequence.k_start + j, 1};
      memory.load(problem.k, key_row, problem.head_dim, buffers.key);
      const T score = head.score(query.row, j, dot(buffers.query, buffers.key, problem.head_dim));
      if (score == kMaskedScore<T>) continue;
      memory.load(problem.v, key_row, problem.value_dim, buffers.value);
      const T dprob =
          dot(buffers.dout, buffers.value, problem.value_dim) * head.dropout_factor(query.row, j);
      const double gradient =
          math::score_gradient(math::probability(score, query.lse), dprob, query.delta);
      add(query.row, j, gradient);
    }
  }

  // dalibi_slopes[b, h] = sum over rows and keys of dS times the derivative of the ALiBi term
  void run_slope(std::int64_t item) const {
    const std::int64_t h = item % problem.heads;
    const std::int64_t own = item / problem.heads;
    const KeyRange batches =
        problem.slopes_per_batch ? KeyRange{own, own + 1} : KeyRange{0, problem.batch};
    double sum = 0;
    for (std::int64_t b = batches.begin; b < batches.end; ++b) {
      const problem::Sequence& sequence = sequences[b];
      add_head(sequence, h, {0, sequence.q_len}, {0, sequence.k_len},
               [&](std::int64_t row, std::int64_t key, double gradient) {
                 const double distance = static_cast<double>(row + sequence.diagonal - key);
                 sum += gradient * math::alibi_derivative(distance);
               });
    }
    store_sum(problem.dalibi_slopes, problem.dalibi_slopes.offset(own, h, 0), sum);
  }

  // dsink[h] = -sum over sequences and rows of exp(sink - lse) * delta
  void run_sink(std::int64_t h) const {
    const T sink = load_element<T>(problem.sink, problem.sink.offset(0, h, 0));
    double sum = 0;
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      for (std::int64_t row = 0; row < sequences[b].q_len; ++row) {
        const QueryRow query = load_query_row(sequences[b], h, row);
        sum += math::score_gradient(math::probability(sink, query.lse), T(0), query.delta);
      }
    }
    store_sum(problem.dsink, problem.dsink.offset(0, h, 0), sum);
  }
};

}  // namespace tilewise::reference
