// The backward pass of one query row against one key tile, in fast memory. These lines are common
// to Algorithm 4 of FlashAttention-1 and Algorithm 2 of FlashAttention-2.
#pragma once

#include "reference/tile_forward.h"

namespace tilewise::reference {

// S = Q K^T, P = exp(S - LSE), dV += P^T dO, dP = dO V^T, dS = P * (dP - delta), dQ += scale dS K,
// dK += scale dS^T Q
template <class T, class Counter>
void add_row_gradients(const Head<T, Counter>& head, const TileRow& tile_row, T lse, T delta,
                       const TileBuffers<T>& b) {
  const std::int64_t head_dim = head.head_dim();
  const std::int64_t value_dim = head.value_dim();
  const T* const query = b.query_tile + tile_row.in_tile * head_dim;
  const T* const dout = b.dout_tile + tile_row.in_tile * value_dim;
  T* const dquery = b.dquery_tile + tile_row.in_tile * head_dim;
  head.score_row(tile_row.row, tile_row.keys, query, b.key_tile, b.scores, b.scaled);
  for (std::int64_t j = 0; j < extent(tile_row.keys); ++j) {
    if (b.scores[j] == kMaskedScore<T>) continue;
    const T prob = math::probability(b.scores[j], lse);
    const T dropout = head.dropout_factor(tile_row.row, tile_row.keys.begin + j);
    add_scaled(prob * dropout, dout, value_dim, b.dvalue_tile + j * value_dim);
    const T dprob = dot(dout, b.value_tile + j * value_dim, value_dim) * dropout;
    const T dscore = head.product_gradient(tile_row.row, tile_row.keys.begin + j, b.scaled[j],
                                           math::score_gradient(prob, dprob, delta)) *
                     head.scale();
    add_scaled(dscore, b.key_tile + j * head_dim, head_dim, dquery);
    add_scaled(dscore, query, head_dim, b.dkey_tile + j * head_dim);
  }
}

// Stores dK_j and dV_j at the end of a key tile.
template <class T, class Counter>
void store_key_gradients(const Group<T, Counter>& group, KeyRange keys, const TileBuffers<T>& b) {
  const Problem& problem = group.problem;
  const Rows rows = group.key_rows(keys.begin, extent(keys));
  group.store_gradient(problem.dk, rows, problem.head_dim, b.dkey_tile);
  group.store_gradient(problem.dv, rows, problem.value_dim, b.dvalue_tile);
}

}  // namespace tilewise::reference
