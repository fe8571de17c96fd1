// FlashAttention-2 (arXiv 2307.08691). In the forward pass query tiles are the outer loop, and O
// stays unnormalised in fast memory until the last key tile. In the backward pass key tiles are the
// outer loop, and LSE and delta are prepared in advance.
#include "reference/tile_backward.h"

namespace tilewise::reference {
namespace {

template <class T>
struct Flash2Buffers {
  std::int64_t widest;
  TileBuffers<T> tiles;
  T* dqueries;  // (G, Sq, D), backward, in slow memory between steps
  T* deltas;    // (G, Sq), backward

  static Flash2Buffers carve(const Problem& problem, Arena& arena) {
    const bool backward = problem.operation == problem::Operation::kBackward;
    const Checked rows = backward ? Checked{problem.group} * Checked{problem.max_q} : Checked{0};
    Flash2Buffers buffers;
    buffers.tiles = TileBuffers<T>::carve(
        problem, flash2_tiles(max_sram_elements(problem), problem.head_dim, problem.value_dim),
        arena);
    buffers.widest = buffers.tiles.widest;
    buffers.dqueries = arena.take<T>(rows * Checked{problem.head_dim});
    buffers.deltas = arena.take<T>(rows);
    return buffers;
  }
};

struct Flash2Forward {
  static constexpr Algorithm kAlgorithm = Algorithm::kFlash2;
  template <class T>
  using Buffers = Flash2Buffers<T>;

  // Algorithm 1.
  template <class T, class Counter>
  static void run(const Group<T, Counter>& group, const Buffers<T>& b, std::int64_t sram_elements) {
    const Problem& problem = group.problem;
    const TileSizes sizes = flash2_tiles(sram_elements, problem.head_dim, problem.value_dim);
    for (std::int64_t g = 0; g < group.size(); ++g) {
      const auto head = group.head(g);
      for_each_tile(group.q_len(), sizes.q_rows, [&](KeyRange queries) {
        const Rows rows = group.query_rows(g, queries.begin, extent(queries));
        group.load_queries(g, queries.begin, rows.count, b.tiles.query_tile);
        for (std::int64_t r = 0; r < rows.count; ++r) {
          b.tiles.states[r] =
              group.first_state(g, queries.begin + r, b.tiles.out_tile + r * problem.value_dim);
        }
        start_unit(group, rows.count, b.tiles);

        for_each_tile(group.k_len(), sizes.k_rows, [&](KeyRange keys) {
          if (head.skips(queries, keys)) return;
          load_key_tile_of_sums(group, keys, rows.count, b.tiles);
          for (std::int64_t r = 0; r < rows.count; ++r) {
            add_row(head, {queries.begin + r, r, keys}, b.tiles, &b.tiles.states[r]);
          }
        });
        finish_tile(group, g, queries, b.tiles);
      });
    }
  }

 private:
  // The earlier result of `accumulate` is the first term of the sums.
  template <class T, class Counter>
  static void start_unit(const Group<T, Counter>& group, std::int64_t q_rows,
                         const TileBuffers<T>& b) {
    const std::int64_t count = q_rows * group.problem.value_dim;
    *b.unit = T(1);
    if (!group.problem.accumulate) return;
    lower_unit(group.unit_of_sums(largest_finite(b.out_tile, count), 2), count, b);
  }

  // O <- out / l, LSE <- m + log l, with the sink in both (lines 12 to 15).
  template <class T, class Counter>
  static void finish_tile(const Group<T, Counter>& group, std::int64_t g, KeyRange queries,
                          const TileBuffers<T>& b) {
    const Problem& problem = group.problem;
    const T sink = group.head(g).sink();
    for (std::int64_t r = 0; r < extent(queries); ++r) {
      const auto finalised = math::finalise(b.states[r], sink);
      scale_row(finalised.scale / *b.unit, problem.value_dim, b.out_tile + r * problem.value_dim);
      group.store_lse(g, queries.begin + r, finalised.lse);
    }
    group.memory.store(problem.out, group.query_rows(g, queries.begin, extent(queries)),
                       problem.value_dim, b.out_tile);
  }
};

struct Flash2Backward {
  static constexpr Algorithm kAlgorithm = Algorithm::kFlash2;
  template <class T>
  using Buffers = Flash2Buffers<T>;

  // Algorithm 2.
  template <class T, class Counter>
  static void run(const Group<T, Counter>& group, const Buffers<T>& b, std::int64_t sram_elements) {
    const Problem& problem = group.problem;
    const TileSizes sizes = flash2_tiles(sram_elements, problem.head_dim, problem.value_dim);
    set_zero(b.dqueries, group.size() * group.q_len() * problem.head_dim);
    for (std::int64_t g = 0; g < group.size(); ++g) {
      for_each_tile(group.q_len(), sizes.q_rows,
                    [&](KeyRange queries) { prepare_deltas(group, g, queries, b); });
    }
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
                             b.dqueries + g * group.q_len() * problem.head_dim);
    }
  }

 private:
  // delta <- rowsum(O * dO) - dLSE, once per row (line 4).
  template <class T, class Counter>
  static void prepare_deltas(const Group<T, Counter>& group, std::int64_t g, KeyRange queries,
                             const Buffers<T>& b) {
    const Problem& problem = group.problem;
    const Rows rows = group.query_rows(g, queries.begin, extent(queries));
    group.memory.load(problem.out, rows, problem.value_dim, b.tiles.out_tile);
    group.memory.load(problem.dout, rows, problem.value_dim, b.tiles.dout_tile);
    for (std::int64_t r = 0; r < rows.count; ++r) {
      const std::int64_t row = queries.begin + r;
      b.deltas[g * group.q_len() + row] =
          group.delta(g, row, b.tiles.out_tile + r * problem.value_dim,
                      b.tiles.dout_tile + r * problem.value_dim);
    }
  }

  // Loads Q_i, dO_i, dQ_i and stores dQ_i (lines 10 to 16).
  template <class T, class Counter>
  static void add_tile_gradients(const Group<T, Counter>& group, std::int64_t g, KeyRange queries,
                                 KeyRange keys, const Buffers<T>& b) {
    const Problem& problem = group.problem;
    const std::int64_t size = problem::dtype_size(problem.dtype);
    const Rows rows = group.query_rows(g, queries.begin, extent(queries));
    const std::int64_t first = g * group.q_len() + queries.begin;
    const auto head = group.head(g);
    T* const dquery = b.dqueries + first * problem.head_dim;
    group.memory.load(problem.q, rows, problem.head_dim, b.tiles.query_tile);
    group.memory.load(problem.dout, rows, problem.value_dim, b.tiles.dout_tile);
    group.memory.load_array(dquery, rows.count * problem.head_dim, size, b.tiles.dquery_tile);
    for (std::int64_t r = 0; r < rows.count; ++r) {
      const std::int64_t row = queries.begin + r;
      add_row_gradients(head, {row, r, keys}, group.load_lse(g, row), b.deltas[first + r], b.tiles);
    }
    group.memory.store_array(b.tiles.dquery_tile, rows.count * problem.head_dim, size, dquery);
  }
};

}  // namespace

constinit const problem::Kernel kFlash2Forward = make_kernel<Flash2Forward>(
    "flash2", "FlashAttention-2: query tiles in the outer loop, output normalised once at the end");
constinit const problem::Kernel kFlash2Backward = make_kernel<Flash2Backward>(
    "flash2", "FlashAttention-2: key tiles in the outer loop, delta prepared");

}  // namespace tilewise::reference
