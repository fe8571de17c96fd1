// What a rung works on: the G query heads that share one key/value head of one sequence. A group
// owns its rows of out, lse, dq, dk and dv, so groups never meet, and a group's work is done in one
// fixed order by one thread.
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

  // Reads the mask of the group's heads; before head() is called.
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

  // Rows of the query side (of query head g) and of the key side, from local row numbers.
  Rows query_rows(std::int64_t g, std::int64_t first, std::int64_t count) const {
    return {sequence.batch, kv_head * problem.group + g, sequence.q_start + first, count};
  }
  Rows key_rows(std::int64_t first, std::int64_t count) const {
    return {sequence.batch, kv_head, sequence.k_start + first, count};
  }

  // The row statistics of query head g.
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

  // delta = rowsum(O * dO) - dLSE
  T delta(std::int64_t g, std::int64_t row, const T* out_row, const T* dout_row) const {
    return dot(out_row, dout_row, problem.value_dim) - load_dlse(g, row);
  }

 private:
  std::int64_t statistic(const problem::View& view, std::int64_t g, std::int64_t row) const {
    return view.offset(sequence.batch, kv_head * problem.group + g, sequence.q_start + row);
  }
};

// The largest score that is not masked; -inf if there is none. A NaN may be passed over here: it
// shows in the sum.
template <class T>
T row_max(const T* scores, std::int64_t keys) {
  T max = kMaskedScore<T>;
  for (std::int64_t j = 0; j < keys; ++j) {
    if (scores[j] != kMaskedScore<T>) max = math::maximum(max, scores[j]);
  }
  return max;
}

// exponentials[j] = exp(score - max), 0 where masked; returns their sum.
template <class T>
T exponentiate(const T* scores, std::int64_t keys, T max, T* exponentials) {
  const T anchor_point = math::anchor(max);
  for (std::int64_t j = 0; j < keys; ++j) exponentials[j] = math::weight(scores[j], anchor_point);
  return sum(exponentials, keys);
}

// One row of a P tile: weights of the keys beside their scores (-inf: masked).
template <class T>
struct WeightedKeys {
  std::int64_t row;
  KeyRange keys;
  const T* scores;   // (keys)
  const T* weights;  // (keys)
};

// sum (width) = sum over keys of dropout * weight * tile row (keys, width); masked keys are not
// touched. A sum of its own: small terms would lose their digits on the way into a large total.
template <class T, class Counter>
void weigh_values(const Head<T, Counter>& head, const WeightedKeys<T>& row, const T* tile,
                  std::int64_t width, T* sum) {
  set_zero(sum, width);
  for (std::int64_t j = 0; j < row.keys.end - row.keys.begin; ++j) {
    if (row.scores[j] == kMaskedScore<T>) continue;
    const T weight = row.weights[j] * head.dropout_factor(row.row, row.keys.begin + j);
    add_scaled(weight, tile + j * width, width, sum);
  }
}

}  // namespace tilewise::reference
