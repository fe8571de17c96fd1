// The unit of work of a rung: a group, the G query heads that share one key/value head of one
// sequence. A group owns its rows of out, lse, dq, dk and dv, so no two groups write the same
// memory, and one thread does the work of a group in one fixed order.
#pragma once

#include "reference/head.h"

namespace tilewise::reference {

template <class T, class Counter>
struct Group {
  using Arithmetic = T;
  using HeadType = Head<T, Counter>;

  const problem::Problem& problem;
  const problem::Sequence& sequence;
  std::int64_t kv_head;
  math::Band* bands;          // (G, max_bands)
  std::int64_t* band_counts;  // (G)
  std::uint8_t* visible;      // (widest key range)
  Memory<T, Counter> memory;

  std::int64_t q_len() const { return sequence.q_len; }
  std::int64_t k_len() const { return sequence.k_len; }
  std::int64_t size() const { return problem.group; }

  // Finds the bands of the group's heads; must be called before head().
  void find_bands() const {
    for (std::int64_t g = 0; g < problem.group; ++g) {
      band_counts[g] = problem::sequence_bands(problem, sequence, kv_head * problem.group + g,
                                               bands + g * problem::max_bands(problem));
    }
  }

  HeadType head(std::int64_t g) const {
    const MaskBuffers mask = {bands + g * problem::max_bands(problem), band_counts[g], visible};
    return HeadType(problem, sequence, kv_head * problem.group + g, mask, memory.counter());
  }

  // Rows of the query side (of query head g) and of the key side, from row numbers in the sequence.
  Rows query_rows(std::int64_t g, std::int64_t first, std::int64_t count) const {
    return {sequence.batch, kv_head * problem.group + g, sequence.q_start + first, count};
  }
  Rows key_rows(std::int64_t first, std::int64_t count) const {
    return {sequence.batch, kv_head, sequence.k_start + first, count};
  }

  // tile (count, D) <- rows of query head g, from row `first` on.
  void load_queries(std::int64_t g, std::int64_t first, std::int64_t count, T* tile) const {
    memory.load(problem.q, query_rows(g, first, count), problem.head_dim, tile);
    descale(problem.q, sequence.q_start + first, count, problem.head_dim, tile);
  }

  // tile (count, width) <- rows of k or v, from key `first` on. The pages of a paged cache are
  // looked up key by key.
  void load_keys(const problem::View& view, std::int64_t first, std::int64_t count,
                 std::int64_t width, T* tile) const {
    const problem::PageTable& pages = problem.page_table;
    if (!pages.present()) memory.load(view, key_rows(first, count), width, tile);
    for (std::int64_t j = first; pages.present() && j < first + count; ++j) {
      const Rows row = {pages.page_of(sequence.batch, j), kv_head, pages.row_of(j), 1};
      memory.load(view, row, width, tile + (j - first) * width);
    }
    descale(view, sequence.k_start + first, count, width, tile);
  }

  // Access to the row statistics of query head g.
  void store_lse(std::int64_t g, std::int64_t row, T lse) const {
    if (problem.lse.present()) store_element(problem.lse, statistic(problem.lse, g, row), lse);
  }
  T load_lse(std::int64_t g, std::int64_t row) const {
    return load_element<T>(problem.lse, statistic(problem.lse, g, row));
  }
  T load_dlse(std::int64_t g, std::int64_t row) const {
    return problem.dlse.present() ? load_element<T>(problem.dlse, statistic(problem.dlse, g, row))
                                  : T(0);
  }

  // Returns the state of a row before the keys of this call, and writes its output to `out` (Dv):
  // the earlier result with `accumulate`, or the empty state and 0.
  math::SoftmaxState<T> first_state(std::int64_t g, std::int64_t row, T* out) const {
    const T lse = problem.accumulate ? load_lse(g, row) : -math::Limits<T>::kInfinity;
    if (lse == -math::Limits<T>::kInfinity) {
      set_zero(out, problem.value_dim);
    } else {
      memory.load(problem.out, query_rows(g, row, 1), problem.value_dim, out);
    }
    return math::state_of_result(lse);
  }

  // Returns the unit of sums of P V over `keys` values up to `largest`: the power of two, at most
  // 1, with which they are finite before they are normalised.
  T unit_of_sums(T largest, std::int64_t keys) const {
    constexpr int kMost = sizeof(T) == 8 ? 1023 : 127;
    const auto exponent_above = [](double x) { return x == 0 ? 0 : __builtin_ilogb(x) + 1; };
    const double probs = static_cast<double>(keys) / (1 - problem.dropout_p);
    const int room = kMost - exponent_above(static_cast<double>(largest)) - exponent_above(probs);
    return static_cast<T>(math::exp2(static_cast<double>(math::min(room, 0))));
  }

  // Stores rows of a gradient, or adds them with `accumulate`. An absent gradient is left out.
  void store_gradient(const problem::View& view, const Rows& rows, std::int64_t width,
                      const T* gradient) const {
    if (!view.present()) return;
    if (problem.accumulate) return memory.add(view, rows, width, gradient);
    memory.store(view, rows, width, gradient);
  }
  // The same for an array of slow memory, which is the tensor in the paper (see Memory::publish()).
  void publish_gradient(const problem::View& view, const Rows& rows, std::int64_t width,
                        const T* gradient) const {
    if (!view.present()) return;
    if (problem.accumulate) return memory.add(view, rows, width, gradient);
    memory.publish(gradient, view, rows, width);
  }

  // Returns delta = rowsum(O * dO) - dLSE.
  T delta(std::int64_t g, std::int64_t row, const T* out_row, const T* dout_row) const {
    return dot(out_row, dout_row, problem.value_dim) - load_dlse(g, row);
  }

 private:
  // Multiplies the numbers of fp8 by their scales. view: q, k or v; row: that of its first row
  void descale(const problem::View& view, std::int64_t row, std::int64_t count, std::int64_t width,
               T* tile) const {
    for (std::int64_t r = 0; problem::is_fp8(view.dtype) && r < count; ++r) {
      const float scale = problem.descale(view, sequence.batch, kv_head, row + r);
      scale_row(static_cast<T>(scale), width, tile + r * width);
    }
  }

  std::int64_t statistic(const problem::View& view, std::int64_t g, std::int64_t row) const {
    return view.offset(sequence.batch, kv_head * problem.group + g, sequence.q_start + row);
  }
};

// Returns the largest score that is not masked; -inf if there is none. This may skip a NaN, which
// then shows in the sum.
template <class T>
T row_max(const T* scores, std::int64_t keys) {
  T max = kMaskedScore<T>;
  for (std::int64_t j = 0; j < keys; ++j) {
    if (scores[j] != kMaskedScore<T>) max = math::maximum(max, scores[j]);
  }
  return max;
}

// Calls function(tile) for the tiles [0, size), [size, 2 size), ... of [0, length).
template <class Function>
void for_each_tile(std::int64_t length, std::int64_t size, const Function& function) {
  for (std::int64_t first = 0; first < length; first += size) {
    function(KeyRange{first, math::min(first + size, length)});
  }
}

// exponentials[j] = exp(score - max), 0 where masked. Returns their sum.
template <class T>
T exponentiate(const T* scores, std::int64_t keys, T max, T* exponentials) {
  const T anchor_point = math::anchor(max);
  for (std::int64_t j = 0; j < keys; ++j) exponentials[j] = math::prob(scores[j], anchor_point);
  return sum(exponentials, keys);
}

// One row of a P tile: the probabilities of the keys, and their scores (-inf: masked).
template <class T>
struct ProbRow {
  std::int64_t row;
  KeyRange keys;
  const T* scores;  // (keys)
  const T* probs;   // (keys)
  T unit = T(1);    // of the sum: see Group::unit_of_sums()
};

// Products P V that are added up before they are added to others. Small terms lose digits beside a
// large sum, and where all values are positive, each of them in the same direction.
inline constexpr std::int64_t kKeysPerSum = 64;

// sum (width) = sum over keys of unit * dropout * prob * tile row (keys, width). Masked keys are
// not touched. `part` (width) is overwritten.
template <class T, class Counter>
void probs_times_values(const Head<T, Counter>& head, const ProbRow<T>& row, const T* tile,
                        std::int64_t width, T* part, T* sum) {
  set_zero(sum, width);
  for_each_tile(row.keys.end - row.keys.begin, kKeysPerSum, [&](KeyRange keys) {
    set_zero(part, width);
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      if (row.scores[j] == kMaskedScore<T>) continue;
      const T factor = row.probs[j] * head.dropout_factor(row.row, row.keys.begin + j) * row.unit;
      add_scaled(factor, tile + j * width, width, part);
    }
    add_scaled(T(1), part, width, sum);
  });
}

}  // namespace tilewise::reference
