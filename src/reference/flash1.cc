// FlashAttention-1 (arXiv 2205.14135): key tiles are the outer loop, query tiles the inner. O is
// kept normalised in slow memory, with its row states (m, l), and every key tile rescales it.
#include "reference/tile_backward.h"

namespace tilewise::reference {
namespace {

template <class T>
struct Flash1Buffers {
  std::int64_t widest;
  TileBuffers<T> tiles;
  T* sums;  // (G, Sq, Dv) O forward, (G, Sq, D) dQ backward, in slow memory between steps
  math::SoftmaxState<T>* states;  // (G, Sq), m and l, forward

  static Flash1Buffers carve(const Problem& problem, Arena& arena) {
    const bool forward = problem.operation == problem::Operation::kForward;
    const Checked rows = Checked{problem.group} * Checked{problem.max_q};
    Flash1Buffers buffers;
    buffers.tiles = TileBuffers<T>::carve(
        problem, flash1_tiles(max_sram_elements(problem), problem.head_dim, problem.value_dim),
        arena);
    buffers.widest = buffers.tiles.widest;
    buffers.sums = arena.take<T>(rows * Checked{forward ? problem.value_dim : problem.head_dim});
    buffers.states = arena.take<math::SoftmaxState<T>>(forward ? rows : Checked{0});
    return buffers;
  }
};

struct Flash1Forward {
  static constexpr Algorithm kAlgorithm = Algorithm::kFlash1;
  template <class T>
  using Buffers = Flash1Buffers<T>;

  // Algorithm 1, with the mask and dropout of Algorithm 2.
  template <class T, class Counter>
  static void run(const Group<T, Counter>& group, const Buffers<T>& b, std::int64_t sram_elements) {
    const Problem& problem = group.problem;
    const TileSizes sizes = flash1_tiles(sram_elements, problem.head_dim, problem.value_dim);
    const std::int64_t rows = group.size() * group.q_len();
    for (std::int64_t r = 0; r < rows; ++r) {
      b.states[r] =
          group.first_state(r / group.q_len(), r % group.q_len(), b.sums + r * problem.value_dim);
    }

    for_each_tile(group.k_len(), sizes.k_rows, [&](KeyRange keys) {
      load_key_tile(group, keys, b.tiles);
      *b.tiles.unit = group.unit_of_sums(
          largest_finite(b.tiles.value_tile, extent(keys) * problem.value_dim), extent(keys));
      for (std::int64_t g = 0; g < group.size(); ++g) {
        const auto head = group.head(g);
        for_each_tile(group.q_len(), sizes.q_rows, [&](KeyRange queries) {
          if (head.skips(queries, keys)) return;
          merge_tile(group, g, queries, keys, b);
        });
      }
    });
    for (std::int64_t g = 0; g < group.size(); ++g) finalise_head(group, g, b);
  }

 private:
  // Merges the state of K_j, V_j into O_i, m_i, l_i (lines 8 to 13).
  template <class T, class Counter>
  static void merge_tile(const Group<T, Counter>& group, std::int64_t g, KeyRange queries,
                         KeyRange keys, const Buffers<T>& b) {
    const Problem& problem = group.problem;
    const std::int64_t size = problem::dtype_size(problem.dtype);
    const std::int64_t first = g * group.q_len() + queries.begin;
    const std::int64_t count = extent(queries);
    const auto head = group.head(g);
    T* const out = b.sums + first * problem.value_dim;
    group.load_queries(g, queries.begin, count, b.tiles.query_tile);
    group.memory.load_array(out, count * problem.value_dim, size, b.tiles.out_tile);
    for (std::int64_t r = 0; r < count; ++r) {
      merge_row(head, {queries.begin + r, r, keys}, b.tiles, &b.states[first + r]);
    }
    group.memory.store_array(b.tiles.out_tile, count * problem.value_dim, size, out);
  }

  // out <- (l_old e^(m_old - m) out + e^(m_tile - m) P V) / l
  template <class T, class Counter>
  static void merge_row(const Head<T, Counter>& head, const TileRow& tile_row,
                        const TileBuffers<T>& b, math::SoftmaxState<T>* state) {
    const std::int64_t keys = extent(tile_row.keys);
    const T* const query = b.query_tile + tile_row.in_tile * head.head_dim();
    T* const out = b.out_tile + tile_row.in_tile * head.value_dim();
    head.score_row(tile_row.row, tile_row.keys, query, b.key_tile, b.scores, nullptr);
    math::SoftmaxState<T> tile;
    tile.max = row_max(b.scores, keys);
    tile.sum = exponentiate(b.scores, keys, tile.max, b.probs);
    const auto merged = math::merge(*state, tile);
    if (merged.state.sum == T(0)) return;  // no key seen so far
    probs_times_values<T>(head, {tile_row.row, tile_row.keys, b.scores, b.probs, *b.unit},
                          b.value_tile, head.value_dim(), b.part, b.partial_out);
    blend(merged.factor_a * state->sum / merged.state.sum,
          merged.factor_b / merged.state.sum / *b.unit, b.partial_out, head.value_dim(), out);
    *state = merged.state;
  }

  // Adds the sink to the denominator, and writes O and LSE.
  template <class T, class Counter>
  static void finalise_head(const Group<T, Counter>& group, std::int64_t g, const Buffers<T>& b) {
    const Problem& problem = group.problem;
    const T sink = group.head(g).sink();
    for (std::int64_t i = 0; i < group.q_len(); ++i) {
      const std::int64_t row = g * group.q_len() + i;
      T* const out = b.sums + row * problem.value_dim;
      const auto finalised = math::finalise(b.states[row], sink);
      if (problem.sink.present())
        scale_row(b.states[row].sum * finalised.scale, problem.value_dim, out);
      group.memory.publish(out, problem.out, group.query_rows(g, i, 1), problem.value_dim);
      group.store_lse(g, i, finalised.lse);
    }
  }
};

struct Flash1Backward {
  static constexpr Algorithm kAlgorithm = Algorithm::kFlash1;
  template <class T>
  using Buffers = Flash1Buffers<T>;

  // Algorithm 4, with LSE in place of (m, l).
  template <class T, class Counter>
  static void run(const Group<T, Counter>& group, const Buffers<T>& b, std::int64_t sram_elements) {
    const Problem& problem = group.problem;
    const TileSizes sizes = flash1_tiles(sram_elements, problem.head_dim, problem.value_dim);
    set_zero(b.sums, group.size() * group.q_len() * problem.head_dim);

    for_each_tile(group.k_len(), sizes.k_rows, [&](KeyRange keys) {
      load_key_tile(group, keys, b.tiles);
      set_zero(b.tiles.dkey_tile, extent(keys) * problem.head_dim);
      set_zero(b.tiles.dvalue_tile, extent(keys) * problem.value_dim);
      for (std::int64_t g = 0; g < group.size(); ++g) {
        const auto head = group.head(g);
        for_each_tile(group.q_len(), sizes.q_rows, [&](KeyRange queries) {
          if (head.skips(queries, keys)) return;
          add_tile_gradients(group, g, queries, keys, b);
        });
      }
      store_key_gradients(group, keys, b.tiles);
    });
    for (std::int64_t g = 0; g < group.size(); ++g) {
      const Rows rows = group.query_rows(g, 0, group.q_len());
      group.publish_gradient(problem.dq, rows, problem.head_dim,
                             b.sums + g * group.q_len() * problem.head_dim);
    }
  }

 private:
  // Loads Q_i, O_i, dO_i, dQ_i, computes delta_i = rowsum(O_i * dO_i) (at every step, in this
  // algorithm), and stores dQ_i (lines 10 to 23).
  template <class T, class Counter>
  static void add_tile_gradients(const Group<T, Counter>& group, std::int64_t g, KeyRange queries,
                                 KeyRange keys, const Buffers<T>& b) {
    const Problem& problem = group.problem;
    const std::int64_t size = problem::dtype_size(problem.dtype);
    const std::int64_t count = extent(queries);
    const Rows rows = group.query_rows(g, queries.begin, count);
    const auto head = group.head(g);
    T* const dquery = b.sums + (g * group.q_len() + queries.begin) * problem.head_dim;
    group.memory.load(problem.q, rows, problem.head_dim, b.tiles.query_tile);
    group.memory.load(problem.out, rows, problem.value_dim, b.tiles.out_tile);
    group.memory.load(problem.dout, rows, problem.value_dim, b.tiles.dout_tile);
    group.memory.load_array(dquery, count * problem.head_dim, size, b.tiles.dquery_tile);
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t row = queries.begin + r;
      const T delta = group.delta(g, row, b.tiles.out_tile + r * problem.value_dim,
                                  b.tiles.dout_tile + r * problem.value_dim);
      add_row_gradients(head, {row, r, keys}, group.load_lse(g, row), delta, b.tiles);
    }
    group.memory.store_array(b.tiles.dquery_tile, count * problem.head_dim, size, dquery);
  }
};

}  // namespace

constinit const problem::Kernel kFlash1Forward = make_kernel<Flash1Forward>(
    "flash1", "FlashAttention-1: key tiles in the outer loop, output renormalised by every tile");
constinit const problem::Kernel kFlash1Backward = make_kernel<Flash1Backward>(
    "flash1", "FlashAttention-1: key tiles in the outer loop, delta recomputed at every step");

}  // namespace tilewise::reference
