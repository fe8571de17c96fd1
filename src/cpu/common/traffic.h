// Counting of memory traffic, and what its closed forms (forward/traffic.h, backward/traffic.h)
// share.
#pragma once

#include "cpu/common/mask.h"
#include "math/integer.h"
#include "problem/kernel.h"

namespace tilewise::cpu::TILEWISE_TARGET {

using problem::RunContext;
using problem::View;

TILEWISE_INLINE void count_traffic(const RunContext& context, std::int64_t read,
                                   std::int64_t written) {
  if (context.traffic == nullptr) return;
  __atomic_fetch_add(&context.traffic->read_bytes, read, __ATOMIC_RELAXED);
  __atomic_fetch_add(&context.traffic->written_bytes, written, __ATOMIC_RELAXED);
}

TILEWISE_INLINE void count_contained_step(const RunContext& context) {
  if (context.contained_steps != nullptr)
    __atomic_fetch_add(context.contained_steps, std::int64_t{1}, __ATOMIC_RELAXED);
}

TILEWISE_INLINE std::int64_t row_bytes(const View& view, std::int64_t width) {
  return width * problem::dtype_size(view.dtype);
}

// False where the traffic depends on the contents of tensors, or where bias, mask or earlier
// results add to it.
TILEWISE_INLINE bool has_closed_form(const Problem& problem) {
  return !problem.varlen_q() && !problem.k_packed && !problem.slices.present() &&
         !problem.seqused_k.present() && !problem.mask.present() && !problem.bias.present() &&
         !problem.accumulate && !problem.parts.present();
}

// The one shape that all sequences and heads of a dense problem have.
struct DenseShape {
  Band band;
  HeadContext context;
  double per_head;  // how often work that is done once per head is done
  double per_kv_head;

  explicit DenseShape(const Problem& problem)
      : context{&problem, {}, 0, &band, 1},
        per_head(static_cast<double>(problem.batch) * static_cast<double>(problem.heads)),
        per_kv_head(static_cast<double>(problem.batch) * static_cast<double>(problem.kv_heads)) {
    context.sequence.q_len = problem.q_rows;
    context.sequence.k_len = problem.k_rows;
    context.sequence.diagonal = problem.top_left ? 0 : problem.k_rows - problem.q_rows;
    band = math::window_band(problem.q_rows, problem.k_rows, context.sequence.diagonal,
                             problem.window_left, problem.window_right);
  }
  DenseShape(const DenseShape&) = delete;
  DenseShape& operator=(const DenseShape&) = delete;
};

// Sum, over the blocks of `rows` queries, of the keys that a block visits. Visits begin at a
// multiple of `grid`.
TILEWISE_INLINE double keys_visited(const DenseShape& shape, std::int64_t rows, std::int64_t grid) {
  const std::int64_t q_len = shape.context.sequence.q_len;
  std::int64_t total = 0;
  for (std::int64_t first = 0; first < q_len; first += rows) {
    const math::KeyRange keys = keys_of_rows(shape.context, first, math::min(rows, q_len - first));
    total += math::max(keys.end - keys.begin / grid * grid, 0);
  }
  return static_cast<double>(total);
}

// Sum, over the blocks of `keys` keys, of the queries that a block visits.
TILEWISE_INLINE double rows_visited(const DenseShape& shape, std::int64_t keys) {
  const std::int64_t k_len = shape.context.sequence.k_len;
  std::int64_t total = 0;
  for (std::int64_t first = 0; first < k_len; first += keys) {
    const math::KeyRange rows = rows_of_keys(shape.context, first, math::min(keys, k_len - first));
    total += math::max(rows.end - rows.begin, 0);
  }
  return static_cast<double>(total);
}

// The number of keys in those blocks of `keys` keys of which a query sees a key.
TILEWISE_INLINE double keys_in_seen_blocks(const DenseShape& shape, std::int64_t keys) {
  const std::int64_t k_len = shape.context.sequence.k_len;
  std::int64_t total = 0;
  for (std::int64_t first = 0; first < k_len; first += keys) {
    const std::int64_t count = math::min(keys, k_len - first);
    const math::KeyRange rows = rows_of_keys(shape.context, first, count);
    total += rows.begin < rows.end ? count : 0;
  }
  return static_cast<double>(total);
}

TILEWISE_INLINE double bytes_of(const View& view, std::int64_t width) {
  return static_cast<double>(row_bytes(view, width));
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
