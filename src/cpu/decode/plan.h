// The plan of decoding: which work items there are. A sequence of few queries is one pass over its
// keys for each kv head. The keys are cut into splits (split-KV), whose states are merged as a tree
// of pairs. The cuts depend on the sequence alone: not on the number of threads, nor on the rest of
// the batch. Splits of which no query sees a key have no work item, and the tree leaves them out,
// which changes no bit of a state.
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
// Heads that are neighbours in a token's row are read together, up to a page of memory, so that
// pages are read in order.
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
// whole sequence, so that the cuts do not depend on what the other queries see.
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

// If slices name heads, the query heads see different keys and are decoded one by one.
TILEWISE_INLINE bool heads_see_different_keys(const Problem& problem) {
  return problem.slices.present() && problem.slices.columns == 6;
}
// The greatest number of kv heads of a work item, which those have whose strides allow it.
TILEWISE_INLINE std::int64_t most_heads_together(const Problem& problem) {
  if (heads_see_different_keys(problem)) return 1;
  const std::int64_t row_bytes =
      math::max(problem.head_dim, problem.value_dim) * problem::dtype_size(problem.dtype);
  return math::clamp(kTogetherBytes / math::max(row_bytes, 1), 1, math::max(problem.kv_heads, 1));
}
TILEWISE_INLINE DecodeHeads decode_heads(const Problem& problem) {
  if (heads_see_different_keys(problem)) return {1, 1, problem.heads};
  const bool side_by_side = problem.k.head < problem.k.row && problem.v.head < problem.v.row;
  const std::int64_t kv_heads = side_by_side ? most_heads_together(problem) : 1;
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

// The greatest number of work items for the planned shapes and any strides: one for each kv head.
TILEWISE_INLINE std::int64_t most_items(const Problem& problem) {
  if (!may_decode(problem)) return 0;
  const std::int64_t splits =
      math::clamp(math::ceil_div(problem.max_k, kLeastSplit), 1, kMostSplits);
  std::int64_t count = multiply_sizes(problem.batch, splits);
  // Sequences of n > 1 splits have at least n * kLeastSplit / 2 keys.
  const std::int64_t of_keys = problem.batch + problem.k_rows / (kLeastSplit / 2);
  if (problem.k_packed && (count < 0 || of_keys < count)) count = of_keys;
  return multiply_sizes(count,
                        heads_see_different_keys(problem) ? problem.heads : problem.kv_heads);
}

// Some of the splits of a sequence.
class SplitSet {
 public:
  // The first `count` splits.
  TILEWISE_INLINE static SplitSet first(std::int64_t count) {
    SplitSet set;
    set.add({0, count});
    return set;
  }
  TILEWISE_INLINE void add(math::KeyRange splits) {
    for (int w = 0; w < kWords; ++w) words_[w] |= bits_of_word(w, splits);
  }
  TILEWISE_INLINE void add(const SplitSet& more) {
    for (int w = 0; w < kWords; ++w) words_[w] |= more.words_[w];
  }
  TILEWISE_INLINE std::int64_t count() const { return count_before(kMostSplits); }
  TILEWISE_INLINE std::int64_t count_before(std::int64_t split) const {
    std::int64_t count = 0;
    for (int w = 0; w < kWords; ++w)
      count += __builtin_popcountll(words_[w] & bits_of_word(w, {0, split}));
    return count;
  }
  // Returns the first of the range's splits that is in the set, or -1.
  TILEWISE_INLINE std::int64_t first_of(math::KeyRange splits) const {
    for (int w = 0; w < kWords; ++w) {
      const std::uint64_t bits = words_[w] & bits_of_word(w, splits);
      if (bits != 0) return w * kBits + __builtin_ctzll(bits);
    }
    return -1;
  }
  // Returns the split that has `rank` others before it. rank: below count()
  TILEWISE_INLINE std::int64_t split_at(std::int64_t rank) const {
    std::int64_t split = first_of({0, kMostSplits});
    for (; rank > 0; --rank) split = first_of({split + 1, kMostSplits});
    return split;
  }

 private:
  static constexpr std::int64_t kBits = 64;
  static constexpr int kWords = kMostSplits / kBits;

  TILEWISE_INLINE static std::uint64_t low_bits(std::int64_t count) {
    return count >= kBits ? ~std::uint64_t{0} : (std::uint64_t{1} << math::max(count, 0)) - 1;
  }
  TILEWISE_INLINE static std::uint64_t bits_of_word(int word, math::KeyRange splits) {
    return low_bits(splits.end - word * kBits) & ~low_bits(splits.begin - word * kBits);
  }

  std::uint64_t words_[kWords] = {};
};

// The lists of work items of a sequence: one, or one for each head if heads see different keys.
TILEWISE_INLINE std::int64_t lists_of_sequence(const Problem& problem) {
  return heads_see_different_keys(problem) ? math::max(problem.heads, 1) : 1;
}

// State that all workers share. Sequences that are not decoded, or that have one split, have no
// states in it.
template <class T>
struct DecodeShared {
  std::int64_t* items_before;   // (B * lists + 1)
  SplitSet* visible;            // (B * lists), with slices: the splits that some query sees
  std::int64_t* states_before;  // (B + 1): rows of states of the sequences before b
  std::uint8_t* arrived;        // (items): see merge_in_tree()
  T* max;                       // (states)
  T* sum;                       // (states)
  T* prob_unit;                 // (states): see DecodeScratch
  T* out;                       // (states, padded Dv)
};

template <class T>
DecodeShared<T> take_decode_shared(const Problem& problem, Arena& arena) {
  const std::int64_t batch = may_decode(problem) ? problem.batch : 0;
  const std::int64_t states = most_states(problem);
  const std::int64_t size = multiply_sizes(states, padded<T>(problem.value_dim).size());
  DecodeShared<T> shared;
  const std::int64_t lists = multiply_sizes(batch, lists_of_sequence(problem));
  shared.items_before = arena.take<std::int64_t>(lists < 0 ? INT64_MAX : lists + 1);
  shared.visible = arena.take<SplitSet>(problem.slices.present() ? lists : 0);
  shared.states_before = arena.take<std::int64_t>(batch + 1);
  const std::int64_t most = most_items(problem);
  shared.arrived = arena.take<std::uint8_t>(most < 0 ? INT64_MAX : most);
  shared.max = arena.take<T>(states < 0 ? INT64_MAX : states);
  shared.sum = arena.take<T>(states < 0 ? INT64_MAX : states);
  shared.prob_unit = arena.take<T>(states < 0 ? INT64_MAX : states);
  shared.out = arena.take<T>(size < 0 ? INT64_MAX : size);
  return shared;
}

// Sets the splits of a decoded sequence that some query sees, with slices; the first one where
// there is none, so that every head has an item.
//
// visible: (lists)
inline void find_visible_splits(const Problem& problem, const Sequence& sequence,
                                const BandIndex& index, SplitSet* visible) {
  const std::int64_t lists = lists_of_sequence(problem);
  const std::int64_t length = split_length(sequence.k_len);
  for (std::int64_t list = 0; list < lists; ++list) visible[list] = {};
  SplitSet of_all;
  for (std::int64_t i = 0; i < index.count; ++i) {
    const problem::IndexedBand& entry = index.bands[i];
    Band band = entry.band;
    band.key_end = math::min(band.key_end, sequence.k_len);
    const math::KeyRange keys = math::tile_keys(band, 0, sequence.q_len);
    if (keys.begin >= keys.end) continue;
    (entry.head == -1 ? of_all : visible[entry.head])
        .add({keys.begin / length, math::ceil_div(keys.end, length)});
  }
  for (std::int64_t list = 0; list < lists; ++list) {
    visible[list].add(of_all);
    if (visible[list].count() == 0) visible[list] = SplitSet::first(1);
  }
}

// Numbers the work items of all sequences. Returns how many there are.
template <class T>
std::int64_t number_decode_items(const Problem& problem, const BlockSchedule& blocks,
                                 const DecodeShared<T>& shared) {
  shared.items_before[0] = shared.states_before[0] = 0;
  if (!may_decode(problem)) return 0;
  const std::int64_t lists = lists_of_sequence(problem);
  const std::int64_t items = decode_heads(problem).items / lists;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence& sequence = blocks.sequences[b];
    const math::KeyRange keys = decode_range(problem, sequence);
    const std::int64_t splits = is_decoded(sequence) ? split_count(keys.end - keys.begin) : 0;
    shared.states_before[b + 1] =
        shared.states_before[b] + (splits > 1 ? splits * problem.heads * sequence.q_len : 0);
    SplitSet* const visible = shared.visible + b * lists;
    const bool some = problem.slices.present() && splits > 0;
    if (some) find_visible_splits(problem, sequence, blocks.bands, visible);
    for (std::int64_t list = 0; list < lists; ++list) {
      shared.items_before[b * lists + list + 1] =
          shared.items_before[b * lists + list] + (some ? visible[list].count() : splits) * items;
    }
  }
  const std::int64_t count = shared.items_before[problem.batch * lists];
  for (std::int64_t i = 0; i < count; ++i) shared.arrived[i] = 0;
  return count;
}

// One work item: a split of the keys of some heads of a sequence.
struct DecodeItem {
  std::int64_t batch;
  std::int64_t heads_number;  // the number of the group of heads
  std::int64_t split;
  SplitSet splits;           // of these heads
  std::int64_t split_count;  // of these heads
  std::int64_t first;        // the number of the first item of these heads
};

// Items are ordered by head, then by split: the order of the cache.
template <class T>
DecodeItem decode_item_at(const Problem& problem, const DecodeShared<T>& shared,
                          std::int64_t number) {
  const std::int64_t lists = lists_of_sequence(problem);
  std::int64_t low = 0;
  std::int64_t high = problem.batch * lists;  // the last list with items_before[list] <= number
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (shared.items_before[middle] <= number ? low : high) = middle;
  }
  const std::int64_t within = number - shared.items_before[low];
  const std::int64_t items = decode_heads(problem).items / lists;
  DecodeItem item;
  item.batch = low / lists;
  item.split_count = (shared.items_before[low + 1] - shared.items_before[low]) / items;
  item.heads_number = low % lists + within / item.split_count;
  item.split = within % item.split_count;
  if (problem.slices.present()) {
    item.splits = shared.visible[low];
    item.split = item.splits.split_at(item.split);
  } else {
    item.splits = SplitSet::first(item.split_count);
  }
  item.first = number - within % item.split_count;
  return item;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
