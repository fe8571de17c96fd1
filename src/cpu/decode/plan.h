// The plan of decoding: which work items there are. A sequence of few queries is one pass over its
// keys for each kv head. The keys are cut into splits (split-KV), whose states are merged as a tree
// of pairs. The cuts depend on the sequence alone: not on the number of threads, nor on the rest of
// the batch.
#pragma once

#include "cpu/common/schedule.h"
#include "cpu/common/tile.h"
#include "cpu/decode/padded_row.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// The greatest number of queries of a decoded sequence. With more queries arithmetic is the limit,
// and lanes = queries are full and need no sums over lanes.
inline constexpr std::int64_t kMostDecodeQueries = 16;
// The length of a split. At least 512 keys, which take 128 KB of one bf16 head of 128 columns, and
// a hundred times as long as starting the split and merging its state. At most 128 splits, enough
// for 16 threads and one head.
inline constexpr std::int64_t kLeastSplit = 512;
inline constexpr std::int64_t kMostSplits = 128;
// Heads that are neighbours in a token's row are read together, up to a page of it, so that pages
// of memory are read in order.
inline constexpr std::int64_t kTogetherBytes = 4096;

TILEWISE_INLINE bool is_decoded(const Sequence& sequence) {
  return sequence.q_len > 0 && sequence.q_len <= kMostDecodeQueries;
}
// may_decode: the problem may have decoded sequences. all_decoded: it has no others.
TILEWISE_INLINE bool may_decode(const Problem& problem) {
  return problem.heads > 0 && (problem.varlen_q() || problem.max_q <= kMostDecodeQueries);
}
TILEWISE_INLINE bool all_decoded(const Problem& problem) {
  return problem.max_q <= kMostDecodeQueries;
}

TILEWISE_INLINE std::int64_t split_length(std::int64_t keys) {
  const std::int64_t length =
      math::ceil_div(math::ceil_div(keys, kMostSplits), kLeastSplit) * kLeastSplit;
  return math::max(length, kLeastSplit);
}
TILEWISE_INLINE std::int64_t split_count(std::int64_t keys) {
  return math::max(math::ceil_div(keys, split_length(keys)), 1);
}

// The range of keys that is cut into splits: all keys that any query may see. With slices it is the
// whole sequence.
TILEWISE_INLINE math::KeyRange decode_range(const Problem& problem, const Sequence& sequence) {
  if (problem.slices.present()) return {0, sequence.k_len};
  const math::Band band = math::window_band(sequence.q_len, sequence.k_len, sequence.diagonal,
                                            problem.window_left, problem.window_right);
  const math::KeyRange keys = math::tile_keys(band, 0, sequence.q_len);
  const std::int64_t begin = math::clamp(keys.begin, 0, sequence.k_len);
  return {begin, math::clamp(keys.end, begin, sequence.k_len)};
}

// The heads of a work item: `kv_heads` neighbouring kv heads, with `group` query heads each (GQA).
struct DecodeHeads {
  std::int64_t group;
  std::int64_t kv_heads;
  std::int64_t items;  // for each split of a sequence
};

// Slices that name heads give every query head keys of its own; such heads are decoded one by one.
TILEWISE_INLINE DecodeHeads decode_heads(const Problem& problem) {
  if (problem.slices.present() && problem.slices.columns == 6) return {1, 1, problem.heads};
  const std::int64_t row_bytes =
      math::max(problem.head_dim, problem.value_dim) * problem::dtype_size(problem.dtype);
  const bool side_by_side = problem.k.head < problem.k.row && problem.v.head < problem.v.row;
  const std::int64_t kv_heads = side_by_side ? math::clamp(kTogetherBytes / math::max(row_bytes, 1),
                                                           1, math::max(problem.kv_heads, 1))
                                             : 1;
  return {problem.group, kv_heads, math::ceil_div(problem.kv_heads, kv_heads)};
}

// Returns a * b, or -1 if a is negative or the product exceeds int64.
TILEWISE_INLINE std::int64_t multiply_sizes(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return a < 0 || __builtin_mul_overflow(a, b, &product) ? -1 : product;
}

// The greatest number of rows of states for the planned shapes: one for each query, head and split
// of sequences that have several splits.
TILEWISE_INLINE std::int64_t most_states(const Problem& problem) {
  const std::int64_t splits = math::min(kMostSplits, math::ceil_div(problem.max_k, kLeastSplit));
  if (!may_decode(problem) || splits < 2) return 0;
  const std::int64_t queries = math::min(problem.max_q, kMostDecodeQueries);
  std::int64_t rows = multiply_sizes(problem.batch, queries);
  if (problem.q_packed) rows = math::min(rows < 0 ? problem.q_rows : rows, problem.q_rows);
  rows = multiply_sizes(rows, splits);
  if (problem.k_packed) {
    // Sequences of n > 1 splits have more than (n - 1) * kLeastSplit >= n * kLeastSplit / 2 keys.
    const std::int64_t of_keys = multiply_sizes(2 * (problem.k_rows / kLeastSplit), queries);
    if (rows < 0 || (of_keys >= 0 && of_keys < rows)) rows = of_keys;
  }
  return multiply_sizes(rows, problem.heads);
}

// The greatest number of work items for the planned shapes.
TILEWISE_INLINE std::int64_t most_items(const Problem& problem) {
  if (!may_decode(problem)) return 0;
  const std::int64_t splits =
      math::clamp(math::ceil_div(problem.max_k, kLeastSplit), 1, kMostSplits);
  std::int64_t count = multiply_sizes(problem.batch, splits);
  // Sequences of n > 1 splits have at least n * kLeastSplit / 2 keys.
  const std::int64_t of_keys = problem.batch + problem.k_rows / (kLeastSplit / 2);
  if (problem.k_packed && (count < 0 || of_keys < count)) count = of_keys;
  return multiply_sizes(count, decode_heads(problem).items);
}

// State that all workers share. Sequences that are not decoded, or that have one split, have no
// states in it.
template <class T>
struct DecodeShared {
  std::int64_t* items_before;   // (B + 1)
  std::int64_t* states_before;  // (B + 1): rows of states of the sequences before b
  std::uint8_t* arrived;        // (items): see merge_in_tree()
  T* max;                       // (states)
  T* sum;                       // (states)
  T* out;                       // (states, padded Dv)
};

template <class T>
DecodeShared<T> take_decode_shared(const Problem& problem, Arena& arena) {
  const std::int64_t batch = may_decode(problem) ? problem.batch : 0;
  const std::int64_t states = most_states(problem);
  const std::int64_t size = multiply_sizes(states, padded<T>(problem.value_dim).size());
  DecodeShared<T> shared;
  shared.items_before = arena.take<std::int64_t>(batch + 1);
  shared.states_before = arena.take<std::int64_t>(batch + 1);
  const std::int64_t most = most_items(problem);
  shared.arrived = arena.take<std::uint8_t>(most < 0 ? INT64_MAX : most);
  shared.max = arena.take<T>(states < 0 ? INT64_MAX : states);
  shared.sum = arena.take<T>(states < 0 ? INT64_MAX : states);
  shared.out = arena.take<T>(size < 0 ? INT64_MAX : size);
  return shared;
}

// Numbers the work items of all sequences. Returns how many there are.
template <class T>
std::int64_t number_decode_items(const Problem& problem, const Sequence* sequences,
                                 const DecodeShared<T>& shared) {
  shared.items_before[0] = shared.states_before[0] = 0;
  if (!may_decode(problem)) return 0;
  const std::int64_t items = decode_heads(problem).items;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const math::KeyRange keys = decode_range(problem, sequences[b]);
    const std::int64_t splits = is_decoded(sequences[b]) ? split_count(keys.end - keys.begin) : 0;
    shared.items_before[b + 1] = shared.items_before[b] + splits * items;
    shared.states_before[b + 1] =
        shared.states_before[b] + (splits > 1 ? splits * problem.heads * sequences[b].q_len : 0);
  }
  for (std::int64_t i = 0; i < shared.items_before[problem.batch]; ++i) shared.arrived[i] = 0;
  return shared.items_before[problem.batch];
}

// One work item: a split of the keys of some heads of a sequence.
struct DecodeItem {
  std::int64_t batch;
  std::int64_t heads_number;  // the number of the group of heads
  std::int64_t split;
  std::int64_t splits;  // of the sequence
};

// Items are ordered by head, then by split: the order of the cache.
template <class T>
DecodeItem decode_item_at(const Problem& problem, const DecodeShared<T>& shared,
                          std::int64_t number) {
  std::int64_t low = 0;
  std::int64_t high = problem.batch;  // the last b with items_before[b] <= number
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (shared.items_before[middle] <= number ? low : high) = middle;
  }
  const std::int64_t within = number - shared.items_before[low];
  const std::int64_t items = decode_heads(problem).items;
  const std::int64_t splits = (shared.items_before[low + 1] - shared.items_before[low]) / items;
  return {low, within / splits, within % splits, splits};
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
