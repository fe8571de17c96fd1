// Decoding: few queries on a long cache (Flash-Decoding, Dao, Haziza, Massa and Sizov 2023). The
// memory is the limit, so K and V are read once for all query heads of a kv head and all queries of
// the sequence, in the order in which they lie, and the keys are shared out in splits
// (decode_plan.h). Whoever finishes the last split of a head merges its states, in the order of
// the splits.
#pragma once

#include "cpu/decode_plan.h"
#include "cpu/decode_step.h"

namespace tilewise::cpu::TILEWISE_TARGET {

using problem::Status;

template <class T>
DecodeScratch<T> take_decode_scratch(const Problem& problem, Arena& arena) {
  if (!may_decode(problem)) return {};
  const DecodeHeads heads = decode_heads(problem);
  const std::int64_t queries = math::lesser(problem.max_q, kMostDecodeQueries);
  const std::int64_t rows = multiply_sizes(heads.group * heads.kv_heads, queries);
  const std::int64_t d_size = padded<T>(problem.head_dim).size();
  const std::int64_t v_size = padded<T>(problem.value_dim).size();
  const std::int64_t q_count = multiply_sizes(rows, d_size);
  const std::int64_t out_count = multiply_sizes(rows, v_size);
  const std::int64_t scores = multiply_sizes(rows, kDecodeKeys);
  const bool overflow = q_count < 0 || out_count < 0 || scores < 0;
  DecodeScratch<T> scratch;
  scratch.queries = arena.take<T>(overflow ? INT64_MAX : q_count);
  scratch.out = arena.take<T>(out_count);
  scratch.max = arena.take<T>(rows);
  scratch.sum = arena.take<T>(rows);
  scratch.rescale = arena.take<T>(rows);
  scratch.scores = arena.take<T>(scores);
  scratch.keep = arena.take<T>(problem.dropout_p > 0 ? queries * kDecodeKeys : 0);
  scratch.staged = arena.take<T>(kDecodeKeys * math::greater(d_size, v_size));
  scratch.mask.low = arena.take<T>(kMostDecodeQueries);
  scratch.mask.high = arena.take<T>(kMostDecodeQueries);
  scratch.mask.visible = arena.take<std::uint8_t>(kMostDecodeQueries * kDecodeKeys);
  scratch.seen = arena.take<std::uint8_t>(scores);
  scratch.bands = arena.take<Band>(problem::max_bands(problem));
  return scratch;
}

// The heads and keys of an item.
struct DecodeRange {
  HeadContext context;  // of the first query head
  DecodeHeads heads;    // `kv_heads` of this item
  math::KeyRange keys;

  TILEWISE_INLINE std::int64_t rows_of_kv_head() const {
    return heads.group * context.sequence.q_len;
  }
  TILEWISE_INLINE std::int64_t rows() const { return heads.kv_heads * rows_of_kv_head(); }
};

// ---- one split ----

template <class T>
void load_decode_queries(const DecodeRange& range, const DecodeScratch<T>& scratch) {
  const Problem& problem = *range.context.problem;
  const std::int64_t q_len = range.context.sequence.q_len;
  const Padded<T> row = padded<T>(problem.head_dim);
  const T sign = ScoreUnits<T>(problem).packed;
  with_storage(problem.q.dtype, [&](auto storage) {
    using S = decltype(storage);
    for (std::int64_t r = 0; r < range.rows(); ++r) {
      const S* const from =
          static_cast<const S*>(problem.q.data) +
          problem.q.offset(range.context.sequence.batch, range.context.head + r / q_len,
                           range.context.sequence.q_start + r % q_len);
      T* const to = scratch.queries + r * row.size();
      for (std::int64_t at = 0; at < row.size(); ++at) {
        const bool again = at >= row.whole() && at < row.size() - row.width + row.whole();
        const std::int64_t c = at < row.whole() ? at : at - row.size() + row.width;
        to[at] = again || c >= problem.head_dim ? T(0) : math::load<T>(from[c]) * sign;
      }
    }
  });
}

template <class T>
void clear_decode_state(const DecodeRange& range, const DecodeScratch<T>& scratch) {
  const math::SoftmaxState<T> empty = math::empty_state<T>();
  for (std::int64_t r = 0; r < range.rows(); ++r) {
    scratch.max[r] = empty.max;
    scratch.sum[r] = empty.sum;
  }
  const std::int64_t size = padded<T>(range.context.problem->value_dim).size();
  for (std::int64_t i = 0; i < range.rows() * size; ++i) scratch.out[i] = T(0);
}

// Rows of K or V of a block.
template <class S>
TILEWISE_INLINE Rows<S> cache_rows(const View& view, const DecodeRange& range,
                                   std::int64_t kv_number, std::int64_t key) {
  const Sequence& sequence = range.context.sequence;
  return {
      static_cast<const S*>(view.data) +
          view.offset(sequence.batch, range.context.kv_head() + kv_number, sequence.k_start + key),
      view.row};
}

// Reads ahead `count` rows of all heads of the item from `key` on, in `steps` steps.
template <class S>
TILEWISE_INLINE ReadAhead read_ahead(const View& view, const DecodeRange& range, std::int64_t width,
                                     std::int64_t key, std::int64_t count, std::int64_t steps) {
  constexpr std::int64_t kSize = sizeof(S);
  const std::int64_t heads = range.heads.kv_heads;
  const std::int64_t row_bytes = ((heads - 1) * view.head + width) * kSize;
  const std::int64_t rows = math::greater(count, 0);
  const std::int64_t lines = divide_up(row_bytes, 64) + 1;
  const Rows<S> first = cache_rows<S>(view, range, 0, rows > 0 ? key : 0);
  return {reinterpret_cast<const char*>(first.data),
          first.stride * kSize,
          row_bytes,
          rows,
          divide_up(rows * lines, math::greater(steps, 1)),
          0};
}

// One block of keys: the scores of all heads while V comes in, then the outputs of all heads while
// the next block of K does.
template <class T, class S>
void decode_block(const DecodeRange& range, DecodeBlock block, const DecodeScratch<T>& scratch) {
  const Problem& problem = *range.context.problem;
  const Padded<T> k_row = padded<T>(problem.head_dim);
  const Padded<T> v_row = padded<T>(problem.value_dim);
  const std::int64_t rows = block.rows();
  const std::int64_t heads = range.heads.kv_heads;
  ReadAhead v_ahead = read_ahead<S>(problem.v, range, problem.value_dim, block.first, block.keys,
                                    heads * score_steps(block.keys, rows));
  for (std::int64_t kv = 0; kv < heads; ++kv) {
    const Rows<S> k = cache_rows<S>(problem.k, range, kv, block.first);
    const T* const queries = scratch.queries + kv * rows * k_row.size();
    T* const scores = scratch.scores + kv * rows * kDecodeKeys;
    if (needs_staging<T, S>(problem.head_dim, rows)) {
      const Rows<T> staged = stage_block<T>(k, block.keys, problem.head_dim, false, scratch.staged);
      score_all_rows<T, T>(staged, block.keys, rows, queries, k_row, scores, &v_ahead);
    } else {
      score_all_rows<T, S>(k, block.keys, rows, queries, k_row, scores, &v_ahead);
    }
    softmax_rows(block, kv * rows, scratch);
  }
  const std::int64_t next = block.first + block.keys;
  ReadAhead k_ahead =
      read_ahead<S>(problem.k, range, problem.head_dim, next,
                    math::lesser(kDecodeKeys, range.keys.end - next), heads * block.keys);
  for (std::int64_t kv = 0; kv < heads; ++kv) {
    const Rows<S> v = cache_rows<S>(problem.v, range, kv, block.first);
    if (block.careful || needs_staging<T, S>(problem.value_dim, rows)) {
      const Rows<T> staged =
          stage_block<T>(v, block.keys, problem.value_dim, block.careful, scratch.staged);
      output_all_rows<T, T>(staged, block.keys, rows, v_row, kv * rows, scratch, &k_ahead);
    } else {
      output_all_rows<T, S>(v, block.keys, rows, v_row, kv * rows, scratch, &k_ahead);
    }
    if (block.careful) {
      add_seen_rows<T>(v, block, problem.value_dim, v_row, kv * rows, scratch);
    }
  }
}

template <class T, class S>
void decode_keys(const DecodeRange& range, bool careful, const DecodeScratch<T>& scratch) {
  DecodeBlock block = {range.context, range.heads.group, range.context.sequence.q_len, 0, 0,
                       careful};
  for (block.first = range.keys.begin; block.first < range.keys.end; block.first += block.keys) {
    block.keys = math::lesser(kDecodeKeys, range.keys.end - block.first);
    decode_block<T, S>(range, block, scratch);
  }
}

// The states of a split, the careful way if it must be.
template <class T>
void decode_split(const DecodeRange& range, const DecodeScratch<T>& scratch) {
  const Problem& problem = *range.context.problem;
  load_decode_queries(range, scratch);
  const std::int64_t out_count = range.rows() * padded<T>(problem.value_dim).size();
  for (bool careful = false;; careful = true) {
    clear_decode_state(range, scratch);
    if constexpr (sizeof(T) == 8) {
      decode_keys<T, double>(range, careful, scratch);
    } else if (problem.dtype == TILEWISE_FP32) {
      decode_keys<T, float>(range, careful, scratch);
    } else if (problem.dtype == TILEWISE_BF16) {
      decode_keys<T, math::BFloat16>(range, careful, scratch);
    } else {
      decode_keys<T, math::Float16>(range, careful, scratch);
    }
    constexpr std::int64_t kLanes = Vec<T>::kLanes;
    if (careful || all_finite<T, kLanes>(scratch.out, out_count / kLanes, kLanes)) return;
  }
}

// ---- results ----

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

// ---- items ----

template <class T>
DecodeRange decode_item_range(const Problem& problem, const Sequence* sequences,
                              const DecodeItem& item, const DecodeScratch<T>& scratch) {
  DecodeRange range;
  range.heads = decode_heads(problem);
  const std::int64_t first = item.heads_number * range.heads.group * range.heads.kv_heads;
  range.context = {&problem, sequences[item.batch], first, scratch.bands, 0};
  range.heads.kv_heads =
      math::lesser(range.heads.kv_heads, (problem.heads - first) / range.heads.group);
  range.context.band_count =
      problem::sequence_bands(problem, range.context.sequence, first, scratch.bands);
  const math::KeyRange keys = decode_range(problem, range.context.sequence);
  const std::int64_t length = split_length(keys.end - keys.begin);
  range.keys.begin = keys.begin + item.split * length;
  range.keys.end = math::lesser(range.keys.begin + length, keys.end);
  return range;
}

template <class T>
void count_decode_traffic(const RunContext& run, const DecodeRange& range, bool merged,
                          std::int64_t splits) {
  const Problem& problem = *range.context.problem;
  const std::int64_t size = problem::dtype_size(problem.dtype);
  const std::int64_t state =
      splits > 1 ? range.rows() * (problem.value_dim + 2) * static_cast<std::int64_t>(sizeof(T))
                 : 0;
  const std::int64_t out = problem.value_dim * problem::dtype_size(problem.out.dtype) +
                           (problem.lse.present() ? problem::dtype_size(problem.lse.dtype) : 0);
  count_traffic(run,
                (range.keys.end - range.keys.begin) * range.heads.kv_heads *
                        (problem.head_dim + problem.value_dim) * size +
                    range.rows() * problem.head_dim * size + (merged ? splits * state : 0),
                state + (merged ? range.rows() * out : 0));
}

// Computes item `number`; if it is the last of its heads, their results.
template <class T>
void decode_item(const Problem& problem, const RunContext& run, const Sequence* sequences,
                 const DecodeShared<T>& shared, std::int64_t number,
                 const DecodeScratch<T>& scratch) {
  const DecodeItem item = decode_item_at(problem, shared, number);
  const DecodeRange range = decode_item_range(problem, sequences, item, scratch);
  decode_split(range, scratch);
  if (item.splits == 1) {
    const std::int64_t size = padded<T>(problem.value_dim).size();
    for (std::int64_t r = 0; r < range.rows(); ++r) {
      store_decoded_row(range, r, math::SoftmaxState<T>{scratch.max[r], scratch.sum[r]},
                        scratch.out + r * size);
    }
    return count_decode_traffic<T>(run, range, true, 1);
  }
  const SplitStates<T> states = split_states(range, shared, item);
  keep_states(range, states, item.split, scratch);
  std::int64_t* const pending =
      shared.pending + item.batch * decode_heads(problem).items + item.heads_number;
  const bool last = __atomic_sub_fetch(pending, 1, __ATOMIC_ACQ_REL) == 0;
  if (last) merge_states(range, states, item.splits, scratch);
  count_decode_traffic<T>(run, range, last, item.splits);
}

// ---- a problem whose sequences are all decoded ----

template <class T>
std::int64_t decode_workspace(const Problem& problem, std::int64_t concurrency) {
  Arena shared(nullptr);
  take_shared(problem, shared);
  take_decode_shared<T>(problem, shared);
  Arena own(nullptr);
  take_decode_scratch<T>(problem, own);
  const std::int64_t workers = multiply_sizes(own.used(), concurrency);
  if (shared.used() < 0 || workers < 0) return -1;
  Arena all(nullptr);
  all.take<char>(shared.used());
  all.take<char>(workers);
  return all.used();
}

template <class T>
Status run_decode(const Problem& problem, const RunContext& run) {
  Arena arena(run.workspace);
  const Shared shared = take_shared(problem, arena);
  const DecodeShared<T> decode = take_decode_shared<T>(problem, arena);
  char* const scratch_base = static_cast<char*>(run.workspace) + arena.used();
  Arena measure(nullptr);
  take_decode_scratch<T>(problem, measure);
  problem::fill_sequences(problem, shared.sequences);
  problem::fill_unowned_rows(problem, shared.sequences);
  const std::int64_t items = number_decode_items(problem, shared.sequences, decode);
  auto body = [&](std::int64_t worker, std::int64_t number) {
    Arena own(scratch_base + worker * measure.used());
    const DecodeScratch<T> scratch = take_decode_scratch<T>(problem, own);
    decode_item(problem, run, shared.sequences, decode, number, scratch);
  };
  share_items(run, shared.next, items, body);
  return TILEWISE_OK;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
