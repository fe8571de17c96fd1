// One split of the keys of some heads of a sequence: from the queries to unnormalised states.
#pragma once

#include "cpu/decode/plan.h"
#include "cpu/decode/step.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

template <class T>
DecodeScratch<T> take_decode_scratch(const Problem& problem, Arena& arena) {
  if (!may_decode(problem)) return {};
  const std::int64_t heads = most_heads_together(problem);  // a plan serves any strides
  const std::int64_t group = heads_see_different_keys(problem) ? 1 : problem.group;
  const std::int64_t queries = math::min(problem.max_q, kMostDecodeQueries);
  const std::int64_t rows = multiply_sizes(group * heads, queries);
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
  scratch.query_unit = arena.take<T>(rows);
  scratch.out_unit = arena.take<T>(heads);
  scratch.scores = arena.take<T>(scores);
  scratch.keep = arena.take<T>(problem.dropout_p > 0 ? queries * kDecodeKeys : 0);
  scratch.staged = arena.take<T>(kDecodeKeys * math::max(d_size, v_size));
  scratch.mask.low = arena.take<T>(kMostDecodeQueries);
  scratch.mask.high = arena.take<T>(kMostDecodeQueries);
  scratch.mask.visible = arena.take<std::uint8_t>(kMostDecodeQueries * kDecodeKeys);
  scratch.seen = arena.take<std::uint8_t>(scores);
  scratch.bands = arena.take<Band>(problem::max_bands(problem));
  return scratch;
}

// The heads and keys of a work item.
struct DecodeRange {
  HeadContext context;  // of the first query head
  DecodeHeads heads;    // kv_heads: those of this item
  math::KeyRange keys;
  const DecodeRange* following = nullptr;  // the item that is computed next, if it is known

  TILEWISE_INLINE std::int64_t rows_of_kv_head() const {
    return heads.group * context.sequence.q_len;
  }
  TILEWISE_INLINE std::int64_t rows() const { return heads.kv_heads * rows_of_kv_head(); }
};

// ---- one split ----

// Copies a row of bf16, negated if asked.
template <class T>
TILEWISE_INLINE void load_bf16_queries(const math::BFloat16* from, std::int64_t width, bool negated,
                                       T* to) {
  for (std::int64_t c = 0; c < width; ++c) {
    const math::BFloat16 x = {static_cast<std::uint16_t>(from[c].bits ^ (negated ? 0x8000u : 0u))};
    __builtin_memcpy(reinterpret_cast<char*>(to) + c * 2, &x, sizeof(x));
  }
}

// Returns true if a block of K or V starts with a number below 2^least, so that it is worth while
// to measure it. One register decides, because the time of a block is that of reading it; only the
// speed depends on it.
template <class T, class S>
TILEWISE_INLINE bool starts_small(Rows<S> rows, std::int64_t width, int least) {
  if constexpr (std::is_same_v<S, math::Float16>) {
    return false;
  } else {
    const Vec<T> first =
        width < Vec<T>::kLanes ? Vec<T>(math::load<T>(rows.data[0])) : load_converted<T>(rows.data);
    return any_lane(small_lanes(first, exact_power<T>(least)));
  }
}

template <class T>
void load_decode_queries(const DecodeRange& range, const DecodeScratch<T>& scratch) {
  const Problem& problem = *range.context.problem;
  const std::int64_t q_len = range.context.sequence.q_len;
  const Padded<T> row = padded<T>(problem.head_dim);
  const T sign = ScoreScaling<T>(problem).sign;
  with_storage(problem.q.dtype, [&](auto storage) {
    using S = decltype(storage);
    for (std::int64_t r = 0; r < range.rows(); ++r) {
      const S* const from =
          static_cast<const S*>(problem.q.data) +
          problem.q.offset(range.context.sequence.batch, range.context.head + r / q_len,
                           range.context.sequence.q_start + r % q_len);
      T* const to = scratch.queries + r * row.size();
      scratch.query_unit[r] = T(1);
      if constexpr (std::is_same_v<S, math::BFloat16>) {
        if (uses_bf16_dot<T, S>(problem.head_dim)) {
          load_bf16_queries(from, problem.head_dim, sign < T(0), to);
          continue;
        }
      }
      const RowBlock query = {&problem.q,
                              range.context.sequence.batch,
                              range.context.head + r / q_len,
                              range.context.sequence.q_start + r % q_len,
                              1,
                              problem.head_dim};
      const T unit =
          scores_have_units(problem) ? unit_of_rows(measure_rows<T>(query), query.width) : T(1);
      scratch.query_unit[r] = unit;
      for (std::int64_t at = 0; at < row.size(); ++at) {
        const bool again = at >= row.whole() && at < row.size() - row.width + row.whole();
        const std::int64_t c = at < row.whole() ? at : at - row.size() + row.width;
        to[at] = again || c >= problem.head_dim ? T(0) : math::load<T>(from[c]) * (sign * unit);
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
  for (std::int64_t kv = 0; kv < range.heads.kv_heads; ++kv) scratch.out_unit[kv] = T(0);
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

// Returns a prefetcher of `count` rows of all heads of the item, from `key` on, in `steps` steps.
template <class S>
TILEWISE_INLINE Prefetcher cache_prefetcher(const View& view, const DecodeRange& range,
                                            std::int64_t width, std::int64_t key,
                                            std::int64_t count, std::int64_t steps) {
  constexpr std::int64_t kSize = sizeof(S);
  const std::int64_t heads = range.heads.kv_heads;
  const std::int64_t row_bytes = ((heads - 1) * view.head + width) * kSize;
  const std::int64_t rows = math::max(count, 0);
  const Rows<S> first = cache_rows<S>(view, range, 0, rows > 0 ? key : 0);
  Prefetcher prefetcher(first.data, rows, row_bytes, first.stride * kSize);
  prefetcher.spread_over(steps);
  return prefetcher;
}

// Keys of a work item.
struct DecodeKeys {
  std::int64_t first;
  std::int64_t count;  // at most kDecodeKeys; 0: there are no more keys
};

// Returns the first block from `key` on of which some query sees a key. Blocks are multiples of
// kDecodeKeys after the first key of the range.
TILEWISE_INLINE DecodeKeys next_block(const DecodeRange& range, std::int64_t key) {
  if (range.context.index == nullptr)
    return {key, math::clamp(range.keys.end - key, 0, kDecodeKeys)};
  const math::KeyRange rest = {key, math::max(key, range.keys.end)};
  const math::KeyRange seen =
      next_visible_keys(range.context, {0, range.context.sequence.q_len}, rest, kDecodeKeys);
  const std::int64_t first = seen.begin / kDecodeKeys * kDecodeKeys;
  return {first, seen.begin < seen.end ? seen.end - first : 0};
}

// Returns a prefetcher of the rows of K of the next block of the range, or of the first one of the
// item that follows.
template <class S>
TILEWISE_INLINE Prefetcher next_keys_prefetcher(const DecodeRange& range, DecodeKeys next,
                                                std::int64_t steps) {
  const Problem& problem = *range.context.problem;
  const bool last = next.count == 0 && range.following != nullptr;
  const DecodeRange& in = last ? *range.following : range;
  if (last) next = next_block(in, in.keys.begin);
  return cache_prefetcher<S>(problem.k, in, problem.head_dim, next.first, next.count, steps);
}

// One kv head of a block of keys.
template <class T>
struct HeadBlock {
  RowBlock k;
  RowBlock v;
  std::int64_t number;     // of the kv head in the item
  std::int64_t first_row;  // of its rows in the item
};
template <class T>
TILEWISE_INLINE HeadBlock<T> head_block(const DecodeRange& range, const DecodeBlock& block,
                                        std::int64_t number) {
  const Problem& problem = *range.context.problem;
  const std::int64_t head = range.context.kv_head() + number;
  const std::int64_t row = range.context.sequence.k_start + block.first;
  const std::int64_t batch = range.context.sequence.batch;
  return {{&problem.k, batch, head, row, block.keys, problem.head_dim},
          {&problem.v, batch, head, row, block.keys, problem.value_dim},
          number,
          number * block.rows()};
}

// The scores and probabilities of one kv head. Returns true if all of its rows see all keys.
template <class T, class S>
bool decode_scores(const DecodeRange& range, const DecodeBlock& block, const HeadBlock<T>& head,
                   const DecodeScratch<T>& scratch, Prefetcher& prefetcher) {
  const Problem& problem = *range.context.problem;
  const Padded<T> row = padded<T>(problem.head_dim);
  const std::int64_t rows = block.rows();
  const bool pairs = uses_bf16_dot<T, S>(problem.head_dim);
  const Rows<S> k = cache_rows<S>(problem.k, range, head.number, block.first);
  const T* const queries = scratch.queries + head.first_row * row.size();
  T* const scores = scratch.scores + head.first_row * kDecodeKeys;
  BlockForm<T> form;
  // Queries are multiplied by a unit of their own, so that most small keys need none.
  if (!pairs && scores_have_units(problem) &&
      starts_small<T>(k, problem.head_dim, 2 * Exponents<T>::kSmall))
    form.unit = unit_of_rows(measure_rows<T>(head.k), problem.head_dim);
  if (!form.in_place() || (!pairs && needs_staging<T, S>(problem.head_dim, rows))) {
    const Rows<T> staged = stage_block<T>(k, block.keys, problem.head_dim, form, scratch.staged);
    score_all_rows<T, T>(staged, block.keys, rows, queries, row, scores, prefetcher);
  } else {
    score_all_rows<T, S>(k, block.keys, rows, queries, row, scores, prefetcher);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    const T q_unit = scratch.query_unit[head.first_row + r];
    if (form.unit == T(1) && q_unit == T(1)) continue;
    divide_scores<T, kDecodeKeys>(1, form.unit, q_unit, scores + r * kDecodeKeys);
  }
  return softmax_rows(block, head.first_row, scratch, prefetcher);
}

// How V of a block is read. The unit of a kv head's outputs is that of the first block of the
// split, and is lowered where values are too large for it.
template <class T, class S>
BlockForm<T> value_form(const DecodeRange& range, const DecodeBlock& block,
                        const HeadBlock<T>& head, bool seen_whole,
                        const DecodeScratch<T>& scratch) {
  T& unit = scratch.out_unit[head.number];
  const Rows<S> v = cache_rows<S>(range.context.problem->v, range, head.number, block.first);
  if (unit == T(0)) {
    unit = starts_small<T>(v, head.v.width, Exponents<T>::kSmall)
               ? unit_of_rows(measure_rows<T>(head.v), head.v.width)
               : T(1);
  }
  BlockForm<T> form = {unit, false};
  form.finite_only =
      !seen_whole && hides_non_finite_values<T, S>(v, block, head.first_row, scratch);
  if (unit == T(1)) return form;
  const T largest = largest_finite<T>(head.v);
  const int room =
      Exponents<T>::kMost - exponent_above(block.context.sequence.k_len) - exponent_above(largest);
  form.unit = room >= exponent_above(unit) ? unit : math::maximum(exact_power<T>(room), T(1));
  for (std::int64_t r = 0; form.unit != unit && r < block.rows(); ++r)
    scratch.rescale[head.first_row + r] *= form.unit / unit;
  unit = form.unit;
  return form;
}

// The outputs of one kv head.
template <class T, class S>
void decode_outputs(const DecodeRange& range, const DecodeBlock& block, const HeadBlock<T>& head,
                    const BlockForm<T>& form, const DecodeScratch<T>& scratch,
                    Prefetcher& prefetcher) {
  const Problem& problem = *range.context.problem;
  const Padded<T> row = padded<T>(problem.value_dim);
  const Rows<S> v = cache_rows<S>(problem.v, range, head.number, block.first);
  if (form.in_place() && !needs_staging<T, S>(problem.value_dim, block.rows())) {
    return output_all_rows<T, S>(v, block.keys, block.rows(), row, head.first_row, scratch,
                                 prefetcher);
  }
  const Rows<T> staged = stage_block<T>(v, block.keys, problem.value_dim, form, scratch.staged);
  output_all_rows<T, T>(staged, block.keys, block.rows(), row, head.first_row, scratch, prefetcher);
  if (form.finite_only) add_non_finite_values<T>(v, block, form.unit, head.first_row, scratch);
}

// One block of keys: the scores of all heads while V is prefetched, then the outputs of all heads
// while K of the next block is prefetched.
template <class T, class S>
void decode_block(const RunContext& run, const DecodeRange& range, const DecodeBlock& block,
                  DecodeKeys next, const DecodeScratch<T>& scratch) {
  const Problem& problem = *range.context.problem;
  const std::int64_t rows = block.rows();
  const std::int64_t heads = range.heads.kv_heads;
  const bool stage_k =
      !uses_bf16_dot<T, S>(problem.head_dim) && needs_staging<T, S>(problem.head_dim, rows);
  const bool stage_v = needs_staging<T, S>(problem.value_dim, rows);
  const std::int64_t k_steps = stage_k ? score_steps<T, T>(block.keys, rows, problem.head_dim)
                                       : score_steps<T, S>(block.keys, rows, problem.head_dim);
  const std::int64_t v_steps = stage_v ? output_steps<T, T>(block.keys, rows, problem.value_dim)
                                       : output_steps<T, S>(block.keys, rows, problem.value_dim);
  Prefetcher v_prefetcher = cache_prefetcher<S>(problem.v, range, problem.value_dim, block.first,
                                                block.keys, heads * k_steps);
  bool seen_whole = true;
  for (std::int64_t kv = 0; kv < heads; ++kv) {
    const bool whole =
        decode_scores<T, S>(range, block, head_block<T>(range, block, kv), scratch, v_prefetcher);
    seen_whole = whole && seen_whole;
  }
  Prefetcher k_prefetcher = next_keys_prefetcher<S>(range, next, heads * v_steps);
  for (std::int64_t kv = 0; kv < heads; ++kv) {
    const HeadBlock<T> head = head_block<T>(range, block, kv);
    BlockForm<T> form;
    if (!seen_whole || scratch.out_unit[kv] != T(1))
      form = value_form<T, S>(range, block, head, seen_whole, scratch);
    if (form.finite_only) count_contained_step(run);
    decode_outputs<T, S>(range, block, head, form, scratch, k_prefetcher);
  }
}

// Returns the number of keys that were read.
template <class T, class S>
std::int64_t decode_keys(const RunContext& run, const DecodeRange& range,
                         const DecodeScratch<T>& scratch) {
  const std::int64_t q_len = range.context.sequence.q_len;
  DecodeBlock block = {range.context, range.heads.group, q_len, 0, 0};
  std::int64_t visited = 0;
  DecodeKeys next = next_block(range, range.keys.begin);
  while (next.count > 0) {
    block.first = next.first;
    block.keys = next.count;
    const std::int64_t end = next.first + next.count;
    if (range.context.index == nullptr) {
      next = next_block(range, end);
    } else {
      block.context = narrowed(range.context, {0, q_len}, {block.first, end}, scratch.bands);
      next = next_block(range, block.first + kDecodeKeys);
    }
    decode_block<T, S>(run, range, block, next, scratch);
    visited += block.keys;
  }
  return visited;
}

// Divides the outputs of a split by their units.
template <class T>
void divide_decoded(const DecodeRange& range, const DecodeScratch<T>& scratch) {
  const std::int64_t size =
      range.rows_of_kv_head() * padded<T>(range.context.problem->value_dim).size();
  for (std::int64_t kv = 0; kv < range.heads.kv_heads; ++kv) {
    const T unit = scratch.out_unit[kv];
    if (unit == T(1) || unit == T(0)) continue;
    for (std::int64_t i = kv * size; i < (kv + 1) * size; ++i) scratch.out[i] /= unit;
  }
}

// Computes the states of a split. Returns the number of keys that were read.
template <class T>
std::int64_t decode_split(const RunContext& run, const DecodeRange& range,
                          const DecodeScratch<T>& scratch) {
  const Problem& problem = *range.context.problem;
  clear_decode_state(range, scratch);
  std::int64_t visited = 0;
  if constexpr (sizeof(T) == 8) {
    visited = decode_keys<T, double>(run, range, scratch);
  } else if (problem.dtype == TILEWISE_FP32) {
    visited = decode_keys<T, float>(run, range, scratch);
  } else if (problem.dtype == TILEWISE_BF16) {
    visited = decode_keys<T, math::BFloat16>(run, range, scratch);
  } else {
    visited = decode_keys<T, math::Float16>(run, range, scratch);
  }
  divide_decoded(range, scratch);
  return visited;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
