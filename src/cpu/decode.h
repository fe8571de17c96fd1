// Decoding: few queries on a long cache (Flash-Decoding, Dao, Haziza, Massa and Sizov 2023). The
// memory is the limit, so K and V are read once for all query heads of a kv head and all queries of
// the sequence, in the order in which they lie, and the keys are shared out in splits
// (decode_plan.h). Whoever finishes the last split of a head merges its states, in the order of
// the splits.
#pragma once

#include "cpu/decode_merge.h"

namespace tilewise::cpu::TILEWISE_TARGET {

using problem::Status;

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
      splits > 1 ? range.rows() * problem.value_dim * static_cast<std::int64_t>(sizeof(T)) : 0;
  const std::int64_t out = problem.value_dim * problem::dtype_size(problem.out.dtype);
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
