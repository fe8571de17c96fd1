// The fast memory of flash1 and flash2: tiles of Br query rows and Bc keys.
#pragma once

#include "math/integer.h"
#include "reference/rung.h"
#include "reference/traffic.h"

namespace tilewise::reference {

template <class T>
struct TileBuffers {
  std::int64_t widest;
  T* query_tile;                  // (Br, D)
  T* key_tile;                    // (Bc, D)
  T* value_tile;                  // (Bc, Dv)
  T* out_tile;                    // (Br, Dv)
  T* scores;                      // (Bc), one row of the S tile
  T* probs;                       // (Bc), one row of the P tile
  T* scaled;                      // (Bc), scores before the softcap
  T* partial_out;                 // (Dv), one row of P V
  T* part;                        // (Dv), of its sum
  math::SoftmaxState<T>* states;  // (Br), of the rows of the q tile
  T* unit;                        // (1), of the rows of out_tile
  // Used by the backward pass only:
  T* dout_tile;    // (Br, Dv)
  T* dquery_tile;  // (Br, D)
  T* dkey_tile;    // (Bc, D)
  T* dvalue_tile;  // (Bc, Dv)

  // Carves the buffers for tiles of at most `tiles` rows.
  static TileBuffers carve(const Problem& problem, TileSizes tiles, Arena& arena) {
    const Checked head_dim = {problem.head_dim};
    const Checked value_dim = {problem.value_dim};
    const Checked q_rows = {math::min(tiles.q_rows, problem.max_q)};
    const Checked k_rows = {math::min(tiles.k_rows, problem.max_k)};
    const bool backward = problem.operation == problem::Operation::kBackward;
    const Checked backward_q = {backward ? q_rows.value : 0};
    const Checked backward_k = {backward ? k_rows.value : 0};
    TileBuffers buffers;
    buffers.widest = k_rows.value;
    buffers.query_tile = arena.take<T>(q_rows * head_dim);
    buffers.key_tile = arena.take<T>(k_rows * head_dim);
    buffers.value_tile = arena.take<T>(k_rows * value_dim);
    buffers.out_tile = arena.take<T>(q_rows * value_dim);
    buffers.scores = arena.take<T>(k_rows);
    buffers.probs = arena.take<T>(k_rows);
    buffers.scaled = arena.take<T>(k_rows);
    buffers.partial_out = arena.take<T>(value_dim);
    buffers.part = arena.take<T>(value_dim);
    buffers.states = arena.take<math::SoftmaxState<T>>(q_rows);
    buffers.unit = arena.take<T>(Checked{1});
    buffers.dout_tile = arena.take<T>(backward_q * value_dim);
    buffers.dquery_tile = arena.take<T>(backward_q * head_dim);
    buffers.dkey_tile = arena.take<T>(backward_k * head_dim);
    buffers.dvalue_tile = arena.take<T>(backward_k * value_dim);
    return buffers;
  }
};

// Returns the number of elements of the largest fast memory that a kernel may be run with;
// workspaces are planned for it.
inline std::int64_t max_sram_elements(const Problem& problem) {
  return kMaxSramBytes / problem::dtype_size(problem.dtype);
}

inline std::int64_t extent(KeyRange range) { return range.end - range.begin; }

}  // namespace tilewise::reference
