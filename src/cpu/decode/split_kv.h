// One split of the keys of some heads of a sequence: from the queries to unnormalised states.
#pragma once

#include "cpu/decode/plan.h"
#include "cpu/decode/step.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

template <class T>
DecodeScratch<T> take_decode_scratch(const Problem& problem, Arena& arena) {
  if (!may_decode(problem)) return {};
  const DecodeHeads heads = decode_heads(problem);
  const std::int64_t queries = math::min(problem.max_q, kMostDecodeQueries);
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
      if constexpr (std::is_same_v<S, math::BFloat16>) {
        if (uses_bf16_dot<T, S>(problem.head_dim)) {
          load_bf16_queries(from, problem.head_dim, sign < T(0), to);
          continue;
        }
      }
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

// Returns a prefetcher of the rows of K after a block.
template <class S>
TILEWISE_INLINE Prefetcher next_keys_prefetcher(const DecodeRange& range, const DecodeBlock& block,
                                                std::int64_t steps) {
  const Problem& problem = *range.context.problem;
  const std::int64_t next = block.first + block.keys;
  const bool last = next == range.keys.end && range.following != nullptr;
  const DecodeRange& in = last ? *range.following : range;
  const std::int64_t first = last ? in.keys.begin : next;
  return cache_prefetcher<S>(problem.k, in, problem.head_dim, first,
                             math::min(kDecodeKeys, in.keys.end - first), steps);
}

// One block of keys: the scores of all heads while V is prefetched, then the outputs of all heads
// while K of the next block is prefetched.
template <class T, class S>
void decode_block(const DecodeRange& range, const DecodeBlock& block,
                  const DecodeScratch<T>& scratch) {
  const Problem& problem = *range.context.problem;
  const Padded<T> k_row = padded<T>(problem.head_dim);
  const Padded<T> v_row = padded<T>(problem.value_dim);
  const std::int64_t rows = block.rows();
  const std::int64_t heads = range.heads.kv_heads;
  const bool stage_k =
      !uses_bf16_dot<T, S>(problem.head_dim) && needs_staging<T, S>(problem.head_dim, rows);
  const bool stage_v = block.slow_path || needs_staging<T, S>(problem.value_dim, rows);
  const std::int64_t k_steps = stage_k ? score_steps<T, T>(block.keys, rows, problem.head_dim)
                                       : score_steps<T, S>(block.keys, rows, problem.head_dim);
  const std::int64_t v_steps = stage_v ? output_steps<T, T>(block.keys, rows, problem.value_dim)
                                       : output_steps<T, S>(block.keys, rows, problem.value_dim);
  Prefetcher v_prefetcher = cache_prefetcher<S>(problem.v, range, problem.value_dim, block.first,
                                                block.keys, heads * k_steps);
  for (std::int64_t kv = 0; kv < heads; ++kv) {
    const Rows<S> k = cache_rows<S>(problem.k, range, kv, block.first);
    const T* const queries = scratch.queries + kv * rows * k_row.size();
    T* const scores = scratch.scores + kv * rows * kDecodeKeys;
    if (stage_k) {
      const Rows<T> staged = stage_block<T>(k, block.keys, problem.head_dim, false, scratch.staged);
      score_all_rows<T, T>(staged, block.keys, rows, queries, k_row, scores, v_prefetcher);
    } else {
      score_all_rows<T, S>(k, block.keys, rows, queries, k_row, scores, v_prefetcher);
    }
    softmax_rows(block, kv * rows, scratch, v_prefetcher);
  }
  Prefetcher k_prefetcher = next_keys_prefetcher<S>(range, block, heads * v_steps);
  for (std::int64_t kv = 0; kv < heads; ++kv) {
    const Rows<S> v = cache_rows<S>(problem.v, range, kv, block.first);
    if (stage_v) {
      const Rows<T> staged =
          stage_block<T>(v, block.keys, problem.value_dim, block.slow_path, scratch.staged);
      output_all_rows<T, T>(staged, block.keys, rows, v_row, kv * rows, scratch, k_prefetcher);
    } else {
      output_all_rows<T, S>(v, block.keys, rows, v_row, kv * rows, scratch, k_prefetcher);
    }
    if (block.slow_path) {
      add_non_finite_values<T>(v, block, problem.value_dim, v_row, kv * rows, scratch);
    }
  }
}

template <class T, class S>
void decode_keys(const DecodeRange& range, bool slow_path, const DecodeScratch<T>& scratch) {
  DecodeBlock block = {range.context, range.heads.group, range.context.sequence.q_len, 0, 0,
                       slow_path};
  for (block.first = range.keys.begin; block.first < range.keys.end; block.first += block.keys) {
    block.keys = math::min(kDecodeKeys, range.keys.end - block.first);
    decode_block<T, S>(range, block, scratch);
  }
}

// Computes the states of a split, on the slow path if the fast one gives a value that is not
// finite.
template <class T>
void decode_split(const DecodeRange& range, const DecodeScratch<T>& scratch) {
  const Problem& problem = *range.context.problem;
  const std::int64_t out_count = range.rows() * padded<T>(problem.value_dim).size();
  for (bool slow_path = false;; slow_path = true) {
    clear_decode_state(range, scratch);
    if constexpr (sizeof(T) == 8) {
      decode_keys<T, double>(range, slow_path, scratch);
    } else if (problem.dtype == TILEWISE_FP32) {
      decode_keys<T, float>(range, slow_path, scratch);
    } else if (problem.dtype == TILEWISE_BF16) {
      decode_keys<T, math::BFloat16>(range, slow_path, scratch);
    } else {
      decode_keys<T, math::Float16>(range, slow_path, scratch);
    }
    constexpr std::int64_t kLanes = Vec<T>::kLanes;
    if (slow_path || all_finite<T, kLanes>(scratch.out, out_count / kLanes, kLanes)) return;
  }
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
