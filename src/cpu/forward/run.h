// The forward pass as a whole: workers share blocks of queries and decoded sequences.
#pragma once

#include "cpu/decode/run.h"
#include "cpu/forward/finalise.h"
#include "cpu/forward/main_loop.h"
#include "cpu/forward/split_kv.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Panels of queries that share a pass over the keys. K and V are packed, and read from the L3, once
// for all of them. With D = 128 the panels take 768 KB of the L2, for any register width.
inline constexpr std::int64_t kMostPanels = 16 * 64 / kVectorBytes;

// The panels of a block of queries, and its rows. The workspace has room for `panels`; `rows` may
// be fewer, because blocks are made equally large for the length of the sequence, and the workspace
// must not depend on it.
struct BlockSize {
  std::int64_t panels;
  std::int64_t rows;
};
template <class Policy>
TILEWISE_INLINE BlockSize block_size(const Problem& problem, PanelLimits limits,
                                     std::int64_t concurrency) {
  const std::int64_t of_head = math::ceil_div(problem.max_q, Policy::kWidth);
  const std::int64_t items =
      problem.batch * problem.heads * planned_splits(problem, Policy::kSplitKeys);
  const std::int64_t panels = choose_panels(items, of_head, limits, concurrency);
  return {panels, even_panels(of_head, panels) * Policy::kWidth};
}

// The policy of the SIMD kernels, with multiply-adds of operands E: how one worker computes a
// block, and how many rows it has.
template <class E, int kColumns>
struct SimdForward {
  using Number = SumOf<E>;
  using Factor = E;
  static constexpr int kWidth = kColumns * Vec<E>::kLanes;
  static constexpr std::int64_t kKeyGrid =
      Operand<E>::kNumbers;  // visits of keys begin at a multiple of it
  // The products of a row with 512 keys take 30 times as long as storing, loading and merging its
  // state.
  static constexpr std::int64_t kSplitKeys = 512;
  ForwardScratch<E> scratch;
  std::int64_t rows;

  static SimdForward take(const Problem& problem, std::int64_t concurrency, Arena& arena) {
    const BlockSize size = block_size<SimdForward>(problem, {1, kMostPanels}, concurrency);
    return {take_forward_scratch<E, kWidth>(problem, size.panels, arena), size.rows};
  }
  const ForwardScratch<E>& state() const { return scratch; }
  void reset() const {}
  void compute(const RunContext& context, const QueryBlock& block) const {
    forward_block<E, kColumns>(context, block, scratch);
  }
  void finalise(const QueryBlock& block) const {
    if (kRoundsProbs<E>) apply_dropout_scale<E, kWidth>(block, scratch);
  }
  std::int64_t rows_at_once(const QueryBlock& block) const { return block.rows; }
  void count_traffic(const RunContext&, const QueryBlock&) const {}
};

// Numbers the blocks of the sequences that are not decoded; a block has one number for each of its
// splits. Returns how many numbers one head has.
template <class Policy>
std::int64_t number_forward_blocks(const Problem& problem, const BlockSchedule& shared,
                                   std::int64_t block_rows) {
  shared.blocks_before[0] = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence& sequence = shared.sequences[b];
    const std::int64_t blocks =
        is_decoded(sequence) ? 0 : math::ceil_div(sequence.q_len, block_rows);
    shared.blocks_before[b + 1] =
        shared.blocks_before[b] +
        blocks * forward_splits(problem, sequence, Policy::kSplitKeys).count;
  }
  return shared.blocks_before[problem.batch];
}

// State that all workers of a forward pass share.
template <class Policy>
struct ForwardShared {
  using T = typename Policy::Number;
  BlockSchedule blocks;
  HeadQueues runs;
  DecodeShared<T> decode;
  SplitShared<T> splits;
  std::int64_t block_rows;

  static ForwardShared take(const Problem& problem, std::int64_t concurrency, Arena& arena) {
    ForwardShared shared;
    Arena measure(nullptr);
    const Policy policy = Policy::take(problem, concurrency, measure);
    shared.block_rows = policy.rows;
    shared.blocks = take_schedule(problem, arena);
    shared.runs = take_head_queues(problem, arena);
    shared.decode = take_decode_shared<T>(problem, arena);
    shared.splits = take_split_shared(problem, policy, arena);
    return shared;
  }
};

template <class Policy>
std::int64_t forward_workspace(const Problem& problem, std::int64_t concurrency) {
  Arena shared(nullptr);
  ForwardShared<Policy>::take(problem, concurrency, shared);
  Arena own(nullptr);
  Policy::take(problem, concurrency, own);
  take_decode_scratch<typename Policy::Number>(problem, own);
  Arena all(nullptr);
  all.take<char>(shared.bytes());
  std::int64_t workers = 0;
  if (shared.bytes() < 0 || own.bytes() < 0 ||
      __builtin_mul_overflow(own.bytes(), concurrency, &workers))
    return -1;
  all.take<char>(workers);
  return all.bytes();
}

template <class Policy>
TILEWISE_INLINE void finalise_block(const RunContext& run, const QueryBlock& block,
                                    const Policy& policy) {
  policy.finalise(block);
  store_outputs<typename Policy::Factor, Policy::kWidth>(block, policy.state());
  count_output_traffic(run, block);
}

// Computes a block with all its keys, `rows_at_once` rows at a time. The last rows come first,
// because they see the most keys.
template <class Policy>
TILEWISE_INLINE void run_whole_block(const RunContext& run, const QueryBlock& block,
                                     const Policy& policy) {
  const std::int64_t rows = policy.rows_at_once(block);
  for (std::int64_t at = (block.rows - 1) / rows * rows; at >= 0; at -= rows) {
    QueryBlock part = block;
    part.first += at;
    part.rows = math::min(rows, block.rows - at);
    policy.compute(run, part);
    finalise_block(run, part, policy);
  }
}

// Computes the block of a work item, or one split of it.
template <class Policy>
void forward_item(const Problem& problem, const RunContext& run,
                  const ForwardShared<Policy>& shared, std::int64_t number, const Policy& policy) {
  constexpr int kWidth = Policy::kWidth;
  const auto& scratch = policy.state();
  const WorkItem item = work_item_at(problem, shared.blocks, problem.heads, Side::kQueries, number);
  QueryBlock block;
  const Sequence& sequence = shared.blocks.sequences[item.batch];
  block.context = head_context(problem, sequence, item.head, shared.blocks.bands, scratch.bands);
  const ForwardSplits splits = forward_splits(problem, sequence, Policy::kSplitKeys);
  const std::int64_t block_number = item.block / splits.count;
  const std::int64_t split = item.block % splits.count;
  block.first = block_number * shared.block_rows;
  block.rows = math::min(shared.block_rows, sequence.q_len - block.first);
  block.keys = keys_of_split(splits, split);
  block.keys = keys_of_block(block);
  policy.count_traffic(run, block);
  if (splits.count == 1) return run_whole_block(run, block, policy);
  policy.compute(run, block);
  const bool done = store_split_state<typename Policy::Factor, kWidth>(block, split, block_number,
                                                                       scratch, shared.splits);
  count_split_traffic<typename Policy::Number>(run, block, done, splits.count);
  if (!done) return;
  merge_splits<typename Policy::Factor, kWidth>(block, splits.count, scratch, shared.splits);
  finalise_block(run, block, policy);
}

template <class Policy>
Status run_forward(const Problem& problem, const RunContext& run) {
  using T = typename Policy::Number;
  Arena arena(run.workspace);
  auto shared = ForwardShared<Policy>::take(problem, run.concurrency, arena);
  const Sequence* const sequences = shared.blocks.sequences;
  char* const scratch_base = static_cast<char*>(run.workspace) + arena.bytes();
  Arena measure(nullptr);
  Policy::take(problem, run.concurrency, measure);
  take_decode_scratch<T>(problem, measure);
  problem::fill_sequences(problem, shared.blocks.sequences);
  problem::fill_unowned_rows(problem, sequences);
  problem::build_band_index(problem, problem::SearchedBy::kRows, shared.blocks.bands);
  start_splits<Policy>(problem, sequences, shared.splits);
  const std::int64_t blocks =
      number_forward_blocks<Policy>(problem, shared.blocks, shared.block_rows) * problem.heads;
  const std::int64_t decode_items = number_decode_items(problem, shared.blocks, shared.decode);
  fill_head_queues(problem, shared.blocks, shared.runs, blocks, decode_items);
  for (std::int64_t worker = 0; worker < run.concurrency; ++worker) {
    Arena own(scratch_base + worker * measure.bytes());
    Policy::take(problem, run.concurrency, own).reset();
  }
  auto policy = [&](std::int64_t worker, std::int64_t number) {
    Arena own(scratch_base + worker * measure.bytes());
    const Policy worker_policy = Policy::take(problem, run.concurrency, own);
    DecodeScratch<T> decode_scratch = take_decode_scratch<T>(problem, own);
    if (number < blocks) return forward_item(problem, run, shared, number, worker_policy);
    decode_item(problem, run, shared.blocks, shared.decode, number - blocks, decode_items,
                decode_scratch);
  };
  run_head_queues(run, shared.runs, policy);
  return TILEWISE_OK;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
