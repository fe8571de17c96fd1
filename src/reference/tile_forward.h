// The forward pass of one query row against one key tile, in fast memory: lines 8 to 10 of
// Algorithm 1 of FlashAttention-2, which Flash-Decoding has in common.
#pragma once

#include "reference/tile_buffers.h"

namespace tilewise::reference {

struct TileRow {
  std::int64_t row;      // in the sequence
  std::int64_t in_tile;  // in the q tile
  KeyRange keys;
};

// Loads K_j and V_j at the start of a key tile.
template <class T, class Counter>
void load_key_tile(const Group<T, Counter>& group, KeyRange keys, const TileBuffers<T>& b) {
  const Problem& problem = group.problem;
  group.load_keys(problem.k, keys.begin, extent(keys), problem.head_dim, b.key_tile);
  group.load_keys(problem.v, keys.begin, extent(keys), problem.value_dim, b.value_tile);
}

// Lowers the unit of the q tile's sums to that of values up to `largest`.
template <class T>
void lower_unit(T unit, std::int64_t count, const TileBuffers<T>& b) {
  if (unit >= *b.unit) return;
  scale_row(unit / *b.unit, count, b.out_tile);
  *b.unit = unit;
}

// Loads K_j and V_j, and lowers the unit where V_j is so large that sums of P V might overflow.
template <class T, class Counter>
void load_key_tile_of_sums(const Group<T, Counter>& group, KeyRange keys, std::int64_t q_rows,
                           const TileBuffers<T>& b) {
  load_key_tile(group, keys, b);
  const std::int64_t width = group.problem.value_dim;
  const T largest = largest_finite(b.value_tile, extent(keys) * width);
  lower_unit(group.unit_of_sums(largest, group.k_len()), q_rows * width, b);
}

// m <- max(m_old, rowmax S); l <- e^(m_old - m) l + rowsum P; out <- e^(m_old - m) out + P V, with
// P = e^(S - m)
template <class T, class Counter>
void add_row(const Head<T, Counter>& head, const TileRow& tile_row, const TileBuffers<T>& b,
             math::SoftmaxState<T>* state) {
  const std::int64_t keys = extent(tile_row.keys);
  const T* const query = b.query_tile + tile_row.in_tile * head.head_dim();
  T* const out = b.out_tile + tile_row.in_tile * head.value_dim();
  head.score_row(tile_row.row, tile_row.keys, query, b.key_tile, b.scores, nullptr);
  const T max = math::maximum(state->max, row_max(b.scores, keys));
  const T factor = math::prob(state->max, math::anchor(max));
  const T sum = exponentiate(b.scores, keys, max, b.probs);
  *state = {max, factor * state->sum + sum};
  probs_times_values<T>(head, {tile_row.row, tile_row.keys, b.scores, b.probs, *b.unit},
                        b.value_tile, head.value_dim(), b.part, b.partial_out);
  blend(factor, T(1), b.partial_out, head.value_dim(), out);
}

}  // namespace tilewise::reference
