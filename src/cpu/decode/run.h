// Decoding: few queries on a long cache (Flash-Decoding; Dao, Haziza, Massa and Sizov 2023). Memory
// bandwidth is the limit. K and V are therefore read once for all query heads of a kv head (GQA)
// and all queries of the sequence, in the order of memory, and the keys are shared among workers in
// splits (plan.h). The states of a head's splits are merged as a tree of pairs (merge.h).
#pragma once

#include "cpu/common/traffic.h"
#include "cpu/decode/merge.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// The heads and keys of a work item.
//
// bands: room for max_bands(problem)
TILEWISE_INLINE DecodeRange decode_item_keys(const Problem& problem, const BlockSchedule& blocks,
                                             const DecodeItem& item, Band* bands) {
  DecodeRange range;
  range.heads = decode_heads(problem);
  const std::int64_t first = item.heads_number * range.heads.group * range.heads.kv_heads;
  range.context = head_context(problem, blocks.sequences[item.batch], first, blocks.bands, bands);
  range.heads.kv_heads =
      math::min(range.heads.kv_heads, (problem.heads - first) / range.heads.group);
  const math::KeyRange keys = decode_range(problem, range.context.sequence);
  const std::int64_t length = split_length(keys.end - keys.begin);
  range.keys.begin = keys.begin + item.split * length;
  range.keys.end = math::min(range.keys.begin + length, keys.end);
  return range;
}

// visited: keys that were read; merged: pairs of states that were merged; last: the results were
// stored. Queries count for every split, although a worker loads them once for consecutive splits
// of a head, so that the count does not depend on the number of threads.
template <class T>
void count_decode_traffic(const RunContext& run, const DecodeRange& range, std::int64_t visited,
                          std::int64_t merged, bool last, std::int64_t splits) {
  const Problem& problem = *range.context.problem;
  const std::int64_t key =
      row_bytes(problem.k, problem.head_dim) + row_bytes(problem.v, problem.value_dim);
  const std::int64_t state =
      splits > 1 ? range.rows() * problem.value_dim * static_cast<std::int64_t>(sizeof(T)) : 0;
  const std::int64_t out =
      last ? range.rows() * problem.value_dim * problem::dtype_size(problem.out.dtype) : 0;
  count_traffic(run,
                visited * range.heads.kv_heads * key +
                    range.rows() * row_bytes(problem.q, problem.head_dim) +
                    (2 * merged + (last ? 1 : 0)) * state + (problem.accumulate ? out : 0),
                (1 + merged) * state + out);
}

template <class T>
void store_decoded_rows(const DecodeRange& range, const SplitStates<T>& states) {
  for (std::int64_t r = 0; r < range.rows(); ++r)
    store_decoded_row(range, r, math::SoftmaxState<T>{states.max[r], states.sum[r]},
                      states.prob_unit[r], states.out + r * states.size);
}

// Computes the work item `number`, and stores the results of its heads if it completes them.
// `following` is the item that the caller computes next, whose first keys are prefetched, or a
// number after the last.
template <class T>
void decode_item(const Problem& problem, const RunContext& run, const BlockSchedule& blocks,
                 const DecodeShared<T>& shared, std::int64_t number, std::int64_t following,
                 DecodeScratch<T>& own) {
  DecodeScratch<T> scratch = own;
  const DecodeItem item = decode_item_at(problem, shared, number);
  DecodeRange next;
  const bool has_next = following < shared.items_before[problem.batch * lists_of_sequence(problem)];
  if (has_next) {
    const DecodeItem next_item = decode_item_at(problem, shared, following);
    next = decode_item_keys(problem, blocks, next_item, scratch.bands);
  }
  DecodeRange range = decode_item_keys(problem, blocks, item, scratch.bands);
  if (has_next) range.following = &next;
  const std::int64_t heads = item.batch * problem.heads + range.context.head;
  if (own.loaded != heads) load_decode_queries(range, scratch);
  own.loaded = heads;
  const SplitStates<T> states = split_states(range, shared, item);
  if (item.split_count > 1) {  // the split computes its states in their final place
    const SplitStates<T> final_place = states_of_split(states, item.split);
    scratch.max = final_place.max;
    scratch.sum = final_place.sum;
    scratch.prob_unit = final_place.prob_unit;
    scratch.out = final_place.out;
  }
  const std::int64_t visited = decode_split(run, range, scratch);
  if (item.split_count == 1) {
    store_decoded_rows<T>(range, {scratch.max, scratch.sum, scratch.prob_unit, scratch.out,
                                  states.size, states.stride});
    return count_decode_traffic<T>(run, range, visited, 0, true, 1);
  }
  const std::int64_t merged =
      merge_in_tree(range, states, item.split, item.splits, shared.arrived + item.first);
  if (merged >= 0) {
    const std::int64_t first = item.splits.first_of({0, kMostSplits});
    store_decoded_rows(range, states_of_split(states, first));
  }
  count_decode_traffic<T>(run, range, visited, merged < 0 ? -1 - merged : merged, merged >= 0,
                          item.split_count);
}

// ---- problems whose sequences are all decoded ----

template <class T>
std::int64_t decode_workspace(const Problem& problem, std::int64_t concurrency) {
  Arena shared(nullptr);
  take_schedule(problem, shared);
  take_decode_shared<T>(problem, shared);
  Arena own(nullptr);
  take_decode_scratch<T>(problem, own);
  const std::int64_t workers = multiply_sizes(own.bytes(), concurrency);
  if (shared.bytes() < 0 || workers < 0) return -1;
  Arena all(nullptr);
  all.take<char>(shared.bytes());
  all.take<char>(workers);
  return all.bytes();
}

template <class T>
Status run_decode(const Problem& problem, const RunContext& run) {
  Arena arena(run.workspace);
  BlockSchedule shared = take_schedule(problem, arena);
  const DecodeShared<T> decode = take_decode_shared<T>(problem, arena);
  char* const scratch_base = static_cast<char*>(run.workspace) + arena.bytes();
  Arena measure(nullptr);
  take_decode_scratch<T>(problem, measure);
  problem::fill_sequences(problem, shared.sequences);
  problem::fill_unowned_rows(problem, shared.sequences);
  problem::build_band_index(problem, problem::SearchedBy::kKeys, shared.bands);
  const std::int64_t items = number_decode_items(problem, shared, decode);
  auto start = [&](std::int64_t worker) {
    Arena own(scratch_base + worker * measure.bytes());
    return [&, scratch = take_decode_scratch<T>(problem, own)](std::int64_t number,
                                                               std::int64_t following) mutable {
      decode_item(problem, run, shared, decode, number, following, scratch);
    };
  };
  run_items_with_next(run, shared.next, items, start);
  return TILEWISE_OK;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
