// One split of the keys of some heads of a sequence: from the queries to unnormalised states.
#pragma once

#include "cpu/common/value_unit.h"
#include "cpu/decode/cache_rows.h"
#include "cpu/decode/fp8.h"
#include "cpu/decode/step.h"
#include "cpu/decode/unified.h"
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
  scratch.prob_unit = arena.take<T>(rows);
  scratch.has_prob_units = arena.take<bool>(1);
  scratch.scores = arena.take<T>(scores);
  scratch.keep = arena.take<T>(problem.dropout_p > 0 ? queries * kDecodeKeys : 0);
  scratch.staged = arena.take<T>(kDecodeKeys * math::max(d_size, v_size));
  scratch.addresses = arena.take<void*>(problem.page_table.present() ? kDecodeKeys : 0);
  scratch.mask.low = arena.take<T>(kMostDecodeQueries);
  scratch.mask.high = arena.take<T>(kMostDecodeQueries);
  scratch.mask.visible = arena.take<std::uint8_t>(kMostDecodeQueries * kDecodeKeys);
  scratch.seen = arena.take<std::uint8_t>(scores);
  scratch.at_phi = arena.take<std::uint8_t>(rows);
  scratch.bands = arena.take<Band>(problem::max_bands(problem));
  return scratch;
}

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
template <class T, class Source>
TILEWISE_INLINE bool starts_small(Source rows, std::int64_t width, int least) {
  if constexpr (std::is_same_v<typename Source::Number, math::Float16>) {
    return false;
  } else {
    const Vec<T> first =
        width < Vec<T>::kLanes ? Vec<T>(math::load<T>(rows[0][0])) : load_converted<T>(rows[0]);
    return any_lane(small_lanes(first, exact_power<T>(least)));
  }
}

// Copies a row of queries in the form of padded rows, multiplied by `factor`.
template <class T, class S>
TILEWISE_INLINE void store_query(const S* from, Padded<T> row, std::int64_t width, T factor,
                                 T* to) {
  for (std::int64_t at = 0; at < row.size(); ++at) {
    const bool again = at >= row.whole() && at < row.size() - row.width + row.whole();
    const std::int64_t c = at < row.whole() ? at : at - row.size() + row.width;
    to[at] = again || c >= width ? T(0) : math::load<T>(from[c]) * factor;
  }
}

template <class T>
void load_decode_queries(const DecodeRange& range, const DecodeScratch<T>& scratch) {
  const Problem& problem = *range.context.problem;
  const std::int64_t q_len = range.context.sequence.q_len;
  const Padded<T> row = padded<T>(problem.head_dim);
  const T sign = ScoreScaling<T>(problem).sign;
  for (std::int64_t r = 0; r < range.rows(); ++r) {
    const RowBlock query = {&problem.q,
                            range.context.sequence.batch,
                            range.context.head + r / q_len,
                            range.context.sequence.q_start + r % q_len,
                            1,
                            problem.head_dim};
    T* const to = scratch.queries + r * row.size();
    scratch.query_unit[r] = T(1);
    if constexpr (kReadsFp8 && std::is_same_v<T, float>) {
      if (problem::is_fp8(problem.q.dtype)) {
        dequantise_rows(problem, query, query.head / problem.group, query.width, scratch.staged);
        store_query(scratch.staged, row, query.width, sign, to);
        continue;
      }
    }
    with_storage(problem.q.dtype, [&](auto storage) {
      using S = decltype(storage);
      const S* const from = RowAddresses<const S>(query)[0];
      if constexpr (std::is_same_v<S, math::BFloat16>) {
        if (uses_bf16_dot<T, S>(problem.head_dim) && problem.k.dtype == TILEWISE_BF16)
          return load_bf16_queries(from, query.width, sign < T(0), to);
      }
      const T unit =
          scores_have_units(problem) ? unit_of_rows(measure_rows<T>(query), query.width) : T(1);
      scratch.query_unit[r] = unit;
      store_query(from, row, query.width, sign * unit, to);
    });
  }
}

template <class T>
void clear_decode_state(const DecodeRange& range, const DecodeScratch<T>& scratch) {
  const math::SoftmaxState<T> empty = math::empty_state<T>();
  const std::int64_t q_len = range.context.sequence.q_len;
  for (std::int64_t r = 0; r < range.rows(); ++r) {
    scratch.max[r] = scratch.at_phi[r] != 0
                         ? phi_of_head<T>(*range.context.problem, range.context.head + r / q_len)
                         : empty.max;
    scratch.sum[r] = empty.sum;
  }
  for (std::int64_t kv = 0; kv < range.heads.kv_heads; ++kv) scratch.out_unit[kv] = T(0);
  const std::int64_t size = padded<T>(range.context.problem->value_dim).size();
  for (std::int64_t i = 0; i < range.rows() * size; ++i) scratch.out[i] = T(0);
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
  const PageTable* const pages = pages_of(problem);
  return {{&problem.k, batch, head, row, block.keys, problem.head_dim, pages},
          {&problem.v, batch, head, row, block.keys, problem.value_dim, pages},
          number,
          number * block.rows()};
}

// Divides the scores of a kv head by the units of K and of the queries.
template <class T>
TILEWISE_INLINE void divide_by_units(std::int64_t rows, std::int64_t first_row, T k_unit,
                                     const DecodeScratch<T>& scratch) {
  for (std::int64_t r = first_row; r < first_row + rows; ++r) {
    const T q_unit = scratch.query_unit[r];
    if (k_unit == T(1) && q_unit == T(1)) continue;
    divide_scores<T, kDecodeKeys>(1, k_unit, q_unit, scratch.scores + r * kDecodeKeys);
  }
}

// The scores and probabilities of one kv head. Returns true if all of its rows see all keys.
template <class T, class S, bool kPaged>
bool decode_scores(const DecodeRange& range, const DecodeBlock& block, const HeadBlock<T>& head,
                   const DecodeScratch<T>& scratch,
                   typename CacheForm<S, kPaged>::Prefetch& prefetcher) {
  const Problem& problem = *range.context.problem;
  const Padded<T> row = padded<T>(problem.head_dim);
  const std::int64_t rows = block.rows();
  const T* const queries = scratch.queries + head.first_row * row.size();
  T* const scores = scratch.scores + head.first_row * kDecodeKeys;
  BlockForm<T> form;
  if constexpr (kIsFp8<S>) {
    const Rows<T> staged = stage_fp8_block(problem, head.k, scratch.staged);
    score_all_rows<T>(staged, block.keys, rows, queries, row, scores, prefetcher);
  } else {
    const bool pairs = uses_bf16_dot<T, S>(problem.head_dim);
    const auto k = cache_rows<S, kPaged>(problem.k, range, block, head.number, scratch);
    // Queries are multiplied by a unit of their own, so that most small keys need none.
    if (!pairs && scores_have_units(problem) &&
        starts_small<T>(k, problem.head_dim, 2 * Exponents<T>::kSmall))
      form.unit = unit_of_rows(measure_rows<T>(head.k), problem.head_dim);
    if (!form.in_place() || (!pairs && needs_staging<T, S>(problem.head_dim, rows))) {
      const Rows<T> staged = stage_block<T>(k, block.keys, problem.head_dim, form, scratch.staged);
      score_all_rows<T>(staged, block.keys, rows, queries, row, scores, prefetcher);
    } else {
      score_all_rows<T>(k, block.keys, rows, queries, row, scores, prefetcher);
    }
  }
  divide_by_units(rows, head.first_row, form.unit, scratch);
  return softmax_rows(block, head.first_row, scratch, prefetcher);
}

// Returns true if a block of V starts with a number of at least 2^least.
template <class T, class Source>
TILEWISE_INLINE bool starts_large(Source rows, std::int64_t width, int least) {
  const Vec<T> first =
      width < Vec<T>::kLanes ? Vec<T>(math::load<T>(rows[0][0])) : load_converted<T>(rows[0]);
  const Vec<T> size = absolute(first);
  const Vec<T> infinity(math::Limits<T>::kInfinity);
  return any_lane((Vec<T>(exact_power<T>(least)) <= size) & (size < infinity));
}

// Gives a unit to the probs of a kv head in the first block of a split (see recompute.h).
template <class T>
void start_prob_units(const DecodeBlock& block, std::int64_t first_row, T unit,
                      const DecodeScratch<T>& scratch) {
  for (std::int64_t r = first_row; r < first_row + block.rows(); ++r) {
    if (scratch.prob_unit[r] != T(1)) continue;
    scratch.prob_unit[r] = unit;
    lower_probs(unit, scratch.scores + r * kDecodeKeys);
  }
  *scratch.has_prob_units = true;
}

// Returns the way in which V of a block is read. The unit of a kv head's outputs is that of the
// first block of the split, and is lowered where values are too large for it.
template <class T, class S, bool kPaged>
BlockForm<T> value_form(const DecodeRange& range, const DecodeBlock& block,
                        const HeadBlock<T>& head, bool seen_whole,
                        const DecodeScratch<T>& scratch) {
  T& unit = scratch.out_unit[head.number];
  if constexpr (kIsFp8<S>) {
    unit = T(1);
    if (seen_whole) return {};
    const Rows<T> staged = stage_fp8_block(*range.context.problem, head.v, scratch.staged);
    return {T(1), hides_non_finite_values<T>(staged, block, head.first_row, scratch)};
  } else {
    const auto v =
        cache_rows<S, kPaged>(range.context.problem->v, range, block, head.number, scratch);
    const auto room = [&] {
      return value_room<T>(*range.context.problem, block.context.sequence.k_len);
    };
    if (unit == T(0)) {
      if (starts_large<T>(v, head.v.width, Exponents<T>::kLarge) &&
          starts_large<T>(v, head.v.width, room()))
        start_prob_units(block, head.first_row, least_unit<T>(room()), scratch);
      unit = starts_small<T>(v, head.v.width, Exponents<T>::kSmall)
                 ? unit_of_rows(measure_rows<T>(head.v), head.v.width)
                 : T(1);
    }
    BlockForm<T> form = {unit, false};
    form.finite_only = !seen_whole && hides_non_finite_values<T>(v, block, head.first_row, scratch);
    if (unit == T(1)) return form;
    const T largest = largest_finite<T>(head.v);
    const int most = room() - exponent_above(largest);
    form.unit = most >= exponent_above(unit) ? unit : math::maximum(exact_power<T>(most), T(1));
    for (std::int64_t r = 0; form.unit != unit && r < block.rows(); ++r)
      scratch.rescale[head.first_row + r] *= form.unit / unit;
    unit = form.unit;
    return form;
  }
}

// The outputs of one kv head.
template <class T, class S, bool kPaged>
void decode_outputs(const DecodeRange& range, const DecodeBlock& block, const HeadBlock<T>& head,
                    const BlockForm<T>& form, const DecodeScratch<T>& scratch,
                    typename CacheForm<S, kPaged>::Prefetch& prefetcher) {
  const Problem& problem = *range.context.problem;
  const Padded<T> row = padded<T>(problem.value_dim);
  const auto add_products = [&](auto rows) {
    output_all_rows<T>(rows, block.keys, block.rows(), row, head.first_row, scratch, prefetcher);
  };
  if constexpr (kIsFp8<S>) {
    const Rows<T> staged = stage_fp8_block(problem, head.v, scratch.staged);
    if (form.finite_only) clear_non_finite_rows(staged, head.v);
    add_products(staged);
    if (!form.finite_only) return;
    stage_fp8_block(problem, head.v, scratch.staged);
    add_non_finite_values<T>(staged, block, form.unit, head.first_row, scratch);
  } else {
    const auto v = cache_rows<S, kPaged>(problem.v, range, block, head.number, scratch);
    if (form.in_place() && !needs_staging<T, S>(problem.value_dim, block.rows()))
      return add_products(v);
    add_products(stage_block<T>(v, block.keys, problem.value_dim, form, scratch.staged));
    if (form.finite_only) add_non_finite_values<T>(v, block, form.unit, head.first_row, scratch);
  }
}

// One block of keys: the scores of all heads while V is prefetched, then the outputs of all heads
// while K of the next block is prefetched.
template <class T, class S, bool kPaged>
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
  auto v_prefetcher = cache_prefetcher<S, kPaged>(problem.v, range, problem.value_dim, block.first,
                                                  block.keys, heads * k_steps);
  bool seen_whole = true;
  for (std::int64_t kv = 0; kv < heads; ++kv) {
    const bool whole = decode_scores<T, S, kPaged>(range, block, head_block<T>(range, block, kv),
                                                   scratch, v_prefetcher);
    seen_whole = whole && seen_whole;
  }
  auto k_prefetcher = next_keys_prefetcher<S, kPaged>(range, next, heads * v_steps);
  for (std::int64_t kv = 0; kv < heads; ++kv) {
    const HeadBlock<T> head = head_block<T>(range, block, kv);
    BlockForm<T> form;
    if (!seen_whole || scratch.out_unit[kv] != T(1))
      form = value_form<T, S, kPaged>(range, block, head, seen_whole, scratch);
    if (form.finite_only) count_contained_step(run);
    decode_outputs<T, S, kPaged>(range, block, head, form, scratch, k_prefetcher);
  }
}

// Returns the number of keys that were read.
template <class T, class S, bool kPaged>
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
    decode_block<T, S, kPaged>(run, range, block, next, scratch);
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

// Calls function(S{}) with the storage type S of a dtype whose arithmetic type is T.
template <class T, class Function>
TILEWISE_INLINE void with_decode_storage(std::int32_t dtype, Function function) {
  if constexpr (sizeof(T) == 8) {
    function(double{});
  } else if (dtype == TILEWISE_FP32) {
    function(float{});
  } else if (dtype == TILEWISE_BF16) {
    function(math::BFloat16{});
  } else if (dtype == TILEWISE_FP16) {
    function(math::Float16{});
  } else if constexpr (kReadsFp8) {
    function(Float8Code{});
  }
}

// Computes the states of a split. Returns the number of keys that were read.
template <class T>
std::int64_t decode_split_once(const RunContext& run, const DecodeRange& range,
                               const DecodeScratch<T>& scratch) {
  const Problem& problem = *range.context.problem;
  clear_decode_state(range, scratch);
  std::int64_t visited = 0;
  with_decode_storage<T>(problem.dtype, [&](auto storage) {
    using S = decltype(storage);
    visited = problem.page_table.present() ? decode_keys<T, S, true>(run, range, scratch)
                                           : decode_keys<T, S, false>(run, range, scratch);
  });
  divide_decoded(range, scratch);
  return visited;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
