// From the states of splits to results: the states are merged by the monoid of
// math/softmax_state.h, in the order of the splits.
#pragma once

#include "cpu/decode_split.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Normalises a row, joins the sink, stores O and LSE.
template <class T>
void store_decoded_row(const DecodeRange& range, std::int64_t r, const math::SoftmaxState<T>& state,
                       const T* out) {
  const Problem& problem = *range.context.problem;
  const Sequence& sequence = range.context.sequence;
  const std::int64_t head = range.context.head + r / sequence.q_len;
  const std::int64_t i = sequence.q_start + r % sequence.q_len;
  const T sink = problem.sink.present() ? static_cast<T>(static_cast<const float*>(
                                              problem.sink.data)[problem.sink.offset(0, head, 0)])
                                        : -math::Limits<T>::kInfinity;
  const math::Finalised<T> closed = math::finalise(
      math::SoftmaxState<T>{state.max * ScoreUnits<T>(problem).natural, state.sum}, sink);
  if (problem.lse.present()) {
    store_statistic(problem.lse, sequence.batch, head, i, closed.lse);
  }
  const Padded<T> row = padded<T>(problem.value_dim);
  with_storage(problem.out.dtype, [&](auto storage) {
    using S = decltype(storage);
    S* const to = static_cast<S*>(problem.out.data) + problem.out.offset(sequence.batch, head, i);
    for (std::int64_t at = 0; at < row.size(); ++at) {
      const std::int64_t c = at < row.whole() ? at : at - row.size() + row.width;
      if (c < problem.value_dim) math::store(out[at] * closed.scale, to + c);
    }
  });
}

// Where the states of a head's splits lie: `stride` rows from one split to the next.
template <class T>
struct SplitStates {
  T* max;
  T* sum;
  T* out;
  std::int64_t size;    // of a row of out
  std::int64_t stride;  // rows
};

// The rows of an item in the shared states.
template <class T>
SplitStates<T> split_states(const DecodeRange& range, const DecodeShared<T>& shared,
                            const DecodeItem& item) {
  const std::int64_t q_len = range.context.sequence.q_len;
  const std::int64_t size = padded<T>(range.context.problem->value_dim).size();
  const std::int64_t stride = range.context.problem->heads * q_len;
  const std::int64_t row = shared.states_before[item.batch] + range.context.head * q_len;
  return {shared.max + row, shared.sum + row, shared.out + row * size, size, stride};
}

template <class T>
void keep_states(const DecodeRange& range, const SplitStates<T>& states, std::int64_t split,
                 const DecodeScratch<T>& scratch) {
  const std::int64_t first = split * states.stride;
  for (std::int64_t r = 0; r < range.rows(); ++r) {
    states.max[first + r] = scratch.max[r];
    states.sum[first + r] = scratch.sum[r];
  }
  for (std::int64_t i = 0; i < range.rows() * states.size; ++i)
    states.out[first * states.size + i] = scratch.out[i];
}

// The monoid's product over the splits, in their order.
template <class T>
void merge_states(const DecodeRange& range, const SplitStates<T>& states, std::int64_t splits,
                  const DecodeScratch<T>& scratch) {
  constexpr std::int64_t kLanes = Vec<T>::kLanes;
  const math::ExponentUnit<T> unit = ScoreUnits<T>(*range.context.problem).template exponent<T>();
  T* const out = scratch.out;
  for (std::int64_t r = 0; r < range.rows(); ++r) {
    math::SoftmaxState<T> state = {states.max[r], states.sum[r]};
    for (std::int64_t c = 0; c < states.size; ++c) out[c] = states.out[r * states.size + c];
    for (std::int64_t split = 1; split < splits; ++split) {
      const std::int64_t row = split * states.stride + r;
      const math::Merged<T> merged =
          math::merge(state, math::SoftmaxState<T>{states.max[row], states.sum[row]}, unit);
      state = merged.state;
      for (std::int64_t c = 0; c < states.size; c += kLanes) {
        const Vec<T> more = Vec<T>::load(states.out + row * states.size + c);
        (math::combine(Vec<T>(merged.factor_a), Vec<T>::load(out + c)) +
         math::combine(Vec<T>(merged.factor_b), more))
            .store(out + c);
      }
    }
    store_decoded_row(range, r, state, out);
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
