// Flash-Decoding (Dao, Haziza, Massa and Sizov, "Flash-Decoding for long-context inference", 2023)
// and FlashDecoding++ (Hong et al., arXiv 2311.01282). The keys are cut into splits, which a GPU
// computes at the same time: a query alone, with a long cache, would keep one multiprocessor busy.
// Each split leaves a state of its own for every row in slow memory; a second step merges them. The
// queries of a group share the loads of K and V: rows of a q tile are (query, head of the group).
#include "math/integer.h"
#include "math/unified_maximum.h"
#include "reference/rung.h"
#include "reference/splits.h"
#include "reference/tile_forward.h"

namespace tilewise::reference {
namespace {

template <class T>
struct SplitBuffers {
  std::int64_t widest;
  TileBuffers<T> tiles;
  T* outs;                        // (splits, Br, Dv), unnormalised, in slow memory
  math::SoftmaxState<T>* states;  // (splits, Br)
  T* units;                       // (splits), of outs
  std::uint8_t* at_phi;           // (Br): whether a row's exponents are taken against phi

  static SplitBuffers carve(const Problem& problem, Arena& arena) {
    // The rows of a q tile are those of a group: the buffers of a problem of G Sq queries.
    Problem packed = problem;
    const Checked rows = Checked{problem.group} * Checked{problem.max_q};
    packed.max_q = rows.valid ? rows.value : INT64_MAX;
    const TileSizes tiles =
        flash2_tiles(max_sram_elements(problem), problem.head_dim, problem.value_dim);
    const Checked q_rows = {math::min(tiles.q_rows, packed.max_q)};
    SplitBuffers buffers;
    buffers.tiles = TileBuffers<T>::carve(packed, tiles, arena);
    buffers.widest = buffers.tiles.widest;
    buffers.outs = arena.take<T>(Checked{kMostSplits} * q_rows * Checked{problem.value_dim});
    buffers.states = arena.take<math::SoftmaxState<T>>(Checked{kMostSplits} * q_rows);
    buffers.units = arena.take<T>(Checked{kMostSplits});
    buffers.at_phi = arena.take<std::uint8_t>(q_rows);
    return buffers;
  }
};

// The rows [begin, end) of a group: row r is query r / G of the head r % G.
template <class T, class Counter>
struct PackedRows {
  const Group<T, Counter>& group;
  KeyRange range;

  std::int64_t count() const { return extent(range); }
  std::int64_t query(std::int64_t r) const { return (range.begin + r) / group.size(); }
  std::int64_t head(std::int64_t r) const { return (range.begin + r) % group.size(); }
  KeyRange queries() const { return {query(0), query(count() - 1) + 1}; }
  Rows in_memory(std::int64_t r) const { return group.query_rows(head(r), query(r), 1); }

  void load_queries(T* tile) const {
    for (std::int64_t r = 0; r < count(); ++r)
      group.load_queries(head(r), query(r), 1, tile + r * group.problem.head_dim);
  }
  bool skips(KeyRange keys) const {
    for (std::int64_t g = 0; g < group.size(); ++g) {
      if (!group.head(g).skips(queries(), keys)) return false;
    }
    return true;
  }
};

// FlashDecoding++: exponents are taken against phi, which all splits share. l <- l + rowsum P; out
// <- out + P V, with P = e^(S - phi)
template <class T, class Counter>
void add_row_at_phi(const Head<T, Counter>& head, const TileRow& row, const TileBuffers<T>& b,
                    math::SoftmaxState<T>* state) {
  const std::int64_t keys = extent(row.keys);
  const T* const query = b.query_tile + row.in_tile * head.head_dim();
  T* const out = b.out_tile + row.in_tile * head.value_dim();
  head.score_row(row.row, row.keys, query, b.key_tile, b.scores, nullptr);
  bool sees_a_key = false;
  for (std::int64_t j = 0; j < keys; ++j) {
    sees_a_key = sees_a_key || b.scores[j] != kMaskedScore<T>;
    b.probs[j] = math::unified_prob(b.scores[j], head.phi());
  }
  if (sees_a_key) state->max = head.phi();
  state->sum += sum(b.probs, keys);
  probs_times_values<T>(head, {row.row, row.keys, b.scores, b.probs, *b.unit}, b.value_tile,
                        head.value_dim(), b.part, b.partial_out);
  blend(T(1), T(1), b.partial_out, head.value_dim(), out);
}

// Flash-Decoding keeps the maximum of each row, as FlashAttention-2 does; FlashDecoding++ replaces
// it by phi, if the problem gives one.
template <bool kUnified, Algorithm kName>
struct FlashDecodingForward {
  static constexpr Algorithm kAlgorithm = kName;
  template <class T>
  using Buffers = SplitBuffers<T>;

  template <class T, class Counter>
  static void run(const Group<T, Counter>& group, const Buffers<T>& b, std::int64_t sram_elements) {
    const Problem& problem = group.problem;
    const TileSizes sizes = flash2_tiles(sram_elements, problem.head_dim, problem.value_dim);
    const Splits splits = splits_of(group.k_len());
    const bool unified = kUnified && problem.phi.present();
    for_each_tile(group.size() * group.q_len(), sizes.q_rows, [&](KeyRange range) {
      const PackedRows<T, Counter> rows = {group, range};
      bool visited[kMostSplits] = {};
      rows.load_queries(b.tiles.query_tile);
      for (std::int64_t s = 0; s < splits.count; ++s) {
        for (std::int64_t r = 0; r < rows.count(); ++r) b.at_phi[r] = unified ? 1 : 0;
        visited[s] = add_keys(rows, splits.keys(s), sizes.k_rows, b);
        if (!visited[s]) continue;
        if (unified && !all_are_safe(rows, b)) {
          add_keys(rows, splits.keys(s), sizes.k_rows, b);
          count_fallback(problem);
        }
        if (splits.count > 1) store_split(rows, s, b);
      }
      if (splits.count != 1) merge_splits(rows, visited, splits.count, b);
      finish_tile(rows, b);
    });
  }

 private:
  // Computes the states of the rows over some keys, at phi or with their maxima. Returns false if
  // no row sees a key.
  template <class T, class Counter>
  static bool add_keys(const PackedRows<T, Counter>& rows, KeyRange keys, std::int64_t tile_size,
                       const Buffers<T>& b) {
    bool visited = false;
    *b.tiles.unit = T(1);
    set_zero(b.tiles.out_tile, rows.count() * rows.group.problem.value_dim);
    for (std::int64_t r = 0; r < rows.count(); ++r) b.tiles.states[r] = math::empty_state<T>();
    for_each_tile(extent(keys), tile_size, [&](KeyRange part) {
      const KeyRange tile = {keys.begin + part.begin, keys.begin + part.end};
      if (rows.skips(tile)) return;
      visited = true;
      load_key_tile_of_sums(rows.group, tile, rows.count(), b.tiles);
      for (std::int64_t r = 0; r < rows.count(); ++r) {
        const auto head = rows.group.head(rows.head(r));
        const TileRow row = {rows.query(r), r, tile};
        b.at_phi[r] != 0 ? add_row_at_phi(head, row, b.tiles, &b.tiles.states[r])
                         : add_row(head, row, b.tiles, &b.tiles.states[r]);
      }
    });
    return visited;
  }

  // Returns whether phi has served all rows (math/unified_maximum.h), and marks those that it has
  // not: they alone fall back, so that no row's bits depend on another.
  template <class T, class Counter>
  static bool all_are_safe(const PackedRows<T, Counter>& rows, const Buffers<T>& b) {
    const std::int64_t width = rows.group.problem.value_dim;
    bool all = true;
    for (std::int64_t r = 0; r < rows.count(); ++r) {
      const math::SoftmaxState<T> state = b.tiles.states[r];
      if (state.max == kMaskedScore<T>) continue;  // it sees no key of the split
      if (math::is_safe_sum(state.sum) && is_safe_out(b.tiles.out_tile + r * width, width))
        continue;
      b.at_phi[r] = 0;
      all = false;
    }
    return all;
  }

  template <class T>
  static bool is_safe_out(const T* out, std::int64_t width) {
    bool any_large_enough = false;
    for (std::int64_t c = 0; c < width; ++c) {
      const T magnitude = out[c] < T(0) ? -out[c] : out[c];
      if (!(magnitude <= T(math::kLargestSafeOut))) return false;
      any_large_enough = any_large_enough || magnitude >= T(math::kSmallestSafeOut);
    }
    return any_large_enough;
  }

  static void count_fallback(const Problem& problem) {
    if (!problem.phi_fallbacks.present()) return;
    std::atomic_ref(*static_cast<std::int64_t*>(problem.phi_fallbacks.data)).fetch_add(1);
  }

  template <class T, class Counter>
  static void store_split(const PackedRows<T, Counter>& rows, std::int64_t split,
                          const Buffers<T>& b) {
    const std::int64_t width = rows.group.problem.value_dim;
    b.units[split] = *b.tiles.unit;
    for (std::int64_t r = 0; r < rows.count(); ++r) {
      const std::int64_t slot = split * rows.count() + r;
      b.states[slot] = b.tiles.states[r];
      rows.group.memory.store_array(b.tiles.out_tile + r * width, width, sizeof(T),
                                    b.outs + slot * width);
    }
  }

  // The second step: states merge in the order of the splits, with the least of their units. Those
  // with the anchor phi merge by plain sums, because their factors are 1.
  template <class T, class Counter>
  static void merge_splits(const PackedRows<T, Counter>& rows, const bool* visited,
                           std::int64_t splits, const Buffers<T>& b) {
    const std::int64_t width = rows.group.problem.value_dim;
    *b.tiles.unit = T(1);
    for (std::int64_t s = 0; s < splits; ++s) {
      if (visited[s]) *b.tiles.unit = math::minimum(*b.tiles.unit, b.units[s]);
    }
    for (std::int64_t r = 0; r < rows.count(); ++r) {
      T* const out = b.tiles.out_tile + r * width;
      math::SoftmaxState<T> state = math::empty_state<T>();
      set_zero(out, width);
      for (std::int64_t s = 0; s < splits; ++s) {
        if (!visited[s]) continue;
        const std::int64_t slot = s * rows.count() + r;
        rows.group.memory.load_array(b.outs + slot * width, width, sizeof(T), b.tiles.partial_out);
        scale_row(*b.tiles.unit / b.units[s], width, b.tiles.partial_out);
        state = merge_row(state, out, b.states[slot], b.tiles.partial_out, width);
      }
      b.tiles.states[r] = state;
    }
  }

  // Merges the row of `more` into the row of `state`, and returns the state of both.
  template <class T>
  static math::SoftmaxState<T> merge_row(math::SoftmaxState<T> state, T* out,
                                         math::SoftmaxState<T> more, const T* more_out,
                                         std::int64_t width) {
    const auto merged = math::merge(state, more);
    for (std::int64_t c = 0; c < width; ++c) {
      out[c] = math::combine(merged.factor_a, out[c]) + math::combine(merged.factor_b, more_out[c]);
    }
    return merged.state;
  }

  // Merges the result of earlier calls into a row, whose unit it may lower. A NaN in it is kept,
  // however small its factor.
  template <class T, class Counter>
  static math::SoftmaxState<T> merge_earlier(const PackedRows<T, Counter>& rows, std::int64_t r,
                                             math::SoftmaxState<T> state, T* unit,
                                             const Buffers<T>& b) {
    const std::int64_t width = rows.group.problem.value_dim;
    const auto earlier = rows.group.first_state(rows.head(r), rows.query(r), b.tiles.partial_out);
    const auto merged = math::merge(state, earlier);
    const T before = *unit;
    const T largest = largest_finite(b.tiles.partial_out, width);
    *unit = math::minimum(before, rows.group.unit_of_sums(largest, 2));
    blend(merged.factor_a * (*unit / before), merged.factor_b * *unit, b.tiles.partial_out, width,
          b.tiles.out_tile + r * width);
    return merged.state;
  }

  // O <- out / l, LSE <- m + log l, with the sink in both, and with the results of earlier calls.
  template <class T, class Counter>
  static void finish_tile(const PackedRows<T, Counter>& rows, const Buffers<T>& b) {
    const Problem& problem = rows.group.problem;
    const std::int64_t width = problem.value_dim;
    for (std::int64_t r = 0; r < rows.count(); ++r) {
      T* const out = b.tiles.out_tile + r * width;
      math::SoftmaxState<T> state = b.tiles.states[r];
      T unit = *b.tiles.unit;
      if (problem.accumulate) state = merge_earlier(rows, r, state, &unit, b);
      const auto finalised = math::finalise(state, rows.group.head(rows.head(r)).sink());
      scale_row(finalised.scale / unit, width, out);
      rows.group.store_lse(rows.head(r), rows.query(r), finalised.lse);
      rows.group.memory.store(problem.out, rows.in_memory(r), width, b.tiles.out_tile + r * width);
    }
  }
};

}  // namespace

constinit const problem::Kernel kFlashDecodingForward =
    make_kernel<FlashDecodingForward<false, Algorithm::kFlashDecoding>>(
        "flash_decoding",
        "Flash-Decoding: keys in splits with states of their own, merged in a second step");
constinit const problem::Kernel kFlashDecodingPpForward =
    make_kernel<FlashDecodingForward<true, Algorithm::kFlashDecodingPp>>(
        "flash_decoding_pp",
        "FlashDecoding++: one anchor for all splits, which merge by sums; a split that leaves its "
        "range has its own maximum");

}  // namespace tilewise::reference
