// Merging of the states of splits (math/softmax_state.h), and storing of the results.
#pragma once

#include "cpu/common/row_end.h"
#include "cpu/decode/recompute.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Normalises a row, adds the sink to its denominator, merges it into the earlier result with
// `accumulate`, and stores O and LSE.
//
// prob_unit: that of the row
template <class T>
void store_decoded_row(const DecodeRange& range, std::int64_t r, const math::SoftmaxState<T>& state,
                       T prob_unit, const T* out) {
  const Problem& problem = *range.context.problem;
  const Sequence& sequence = range.context.sequence;
  const std::int64_t head = range.context.head + r / sequence.q_len;
  const std::int64_t i = sequence.q_start + r % sequence.q_len;
  const math::Continued<T> end = end_row(range.context, head, i, state, sink_of<T>(problem, head));
  const T scale = end.scale / prob_unit;
  const Padded<T> row = padded<T>(problem.value_dim);
  with_storage(problem.out.dtype, [&](auto storage) {
    using S = decltype(storage);
    S* const to = static_cast<S*>(problem.out.data) + problem.out.offset(sequence.batch, head, i);
    for (std::int64_t c = 0; c < problem.value_dim; ++c) {
      const T x = out[c < row.whole() ? c : c + row.size() - row.width] * scale;
      math::store(end.has_earlier ? math::load<T>(to[c]) * end.kept + x : x, to + c);
    }
  });
}

// The states of the splits of a head: `stride` rows from one split to the next.
template <class T>
struct SplitStates {
  T* max;
  T* sum;
  T* prob_unit;
  T* out;
  std::int64_t size;    // of a row of out
  std::int64_t stride;  // in rows
};

// The states of a work item's rows among the shared states.
template <class T>
SplitStates<T> split_states(const DecodeRange& range, const DecodeShared<T>& shared,
                            const DecodeItem& item) {
  const std::int64_t q_len = range.context.sequence.q_len;
  const std::int64_t size = padded<T>(range.context.problem->value_dim).size();
  const std::int64_t stride = range.context.problem->heads * q_len;
  const std::int64_t row = shared.states_before[item.batch] + range.context.head * q_len;
  return {shared.max + row,
          shared.sum + row,
          shared.prob_unit + row,
          shared.out + row * size,
          size,
          stride};
}

template <class T>
SplitStates<T> states_of_split(const SplitStates<T>& states, std::int64_t split) {
  const std::int64_t first = split * states.stride;
  return {states.max + first,
          states.sum + first,
          states.prob_unit + first,
          states.out + first * states.size,
          states.size,
          states.stride};
}

// Merges the states of split `right` into those of split `left`, which comes before it.
template <class T>
void merge_states(const DecodeRange& range, const SplitStates<T>& states, std::int64_t left,
                  std::int64_t right) {
  constexpr std::int64_t kLanes = Vec<T>::kLanes;
  const math::ScaleLog2<T> scale_log2 =
      ScoreScaling<T>(*range.context.problem).template scale_log2<T>();
  for (std::int64_t r = 0; r < range.rows(); ++r) {
    const std::int64_t to = left * states.stride + r;
    const std::int64_t from = right * states.stride + r;
    const math::Merged<T> merged =
        math::merge(math::SoftmaxState<T>{states.max[to], states.sum[to]},
                    math::SoftmaxState<T>{states.max[from], states.sum[from]}, scale_log2);
    T factor_to = merged.factor_a;
    T factor_from = merged.factor_b;
    if (states.prob_unit[to] != states.prob_unit[from]) {
      const T unit = math::minimum(states.prob_unit[to], states.prob_unit[from]);
      factor_to *= unit / states.prob_unit[to];
      factor_from *= unit / states.prob_unit[from];
      states.prob_unit[to] = unit;
    }
    states.max[to] = merged.state.max;
    states.sum[to] = merged.state.sum;
    T* const out = states.out + to * states.size;
    const T* const more = states.out + from * states.size;
    for (std::int64_t c = 0; c < states.size; c += kLanes) {
      (math::combine(Vec<T>(factor_to), Vec<T>::load(out + c)) +
       math::combine(Vec<T>(factor_from), Vec<T>::load(more + c)))
          .store(out + c);
    }
  }
}

// Merges the splits as a tree of pairs of all splits of the sequence. A half without splits of the
// set leaves the other one as it is, and the state of a half is that of its first split. The second
// worker that arrives at a pair merges it. arrived[n] belongs to the pair whose right half begins
// with split n of the set. Returns the number of pairs that the caller of `split` has merged, or -1
// minus that number if other splits have not arrived yet.
template <class T>
std::int64_t merge_in_tree(const DecodeRange& range, const SplitStates<T>& states,
                           std::int64_t split, const SplitSet& splits, std::uint8_t* arrived) {
  std::int64_t merged = 0;
  for (std::int64_t half = 1; half < kMostSplits; half *= 2) {
    const std::int64_t begin = split / (2 * half) * 2 * half;
    const std::int64_t left = splits.first_of({begin, begin + half});
    const std::int64_t right = splits.first_of({begin + half, begin + 2 * half});
    if (left < 0 || right < 0) continue;
    if (__atomic_exchange_n(arrived + splits.count_before(right), std::uint8_t{1},
                            __ATOMIC_ACQ_REL) == 0)
      return -1 - merged;
    merge_states(range, states, left, right);
    ++merged;
  }
  return merged;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
