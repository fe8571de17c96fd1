// The forward pass as a whole: blocks of queries and decoded sequences, shared among workers.
#pragma once

#include "cpu/decode.h"
#include "cpu/forward.h"
#include "cpu/forward_split.h"
#include "cpu/pair_forward.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Panels of queries that share a pass over the keys: K and V are packed, and read from the L3, once
// for all of them. With D = 128 they take 768 KB of the L2, whatever the registers hold.
inline constexpr std::int64_t kMostPanels = 16 * 64 / kVectorBytes;

// Panels of a block of queries, and its rows. Room is made for the panels: evening out depends on
// the length, and the workspace must not.
struct BlockSize {
  std::int64_t panels;
  std::int64_t rows;
};
template <class Body>
TILEWISE_INLINE BlockSize block_size(const Problem& problem, PanelLimits limits,
                                     std::int64_t concurrency) {
  const std::int64_t of_head = math::ceil_div(problem.max_q, Body::kWidth);
  const std::int64_t items =
      problem.batch * problem.heads * planned_splits(problem, Body::kSplitKeys);
  const std::int64_t panels = choose_panels(items, of_head, limits, concurrency);
  return {panels, even_panels(of_head, panels) * Body::kWidth};
}

// How one worker computes blocks, and how many rows they have: multiply-adds of operands E.
template <class E, int kColumns>
struct WideBody {
  using Number = SumOf<E>;
  using Factor = E;
  static constexpr int kWidth = kColumns * Vec<E>::kLanes;
  static constexpr std::int64_t kKeyGrid =
      Operand<E>::kNumbers;  // keys are read from a multiple on
  // Products with 512 keys take a row 30 times as long as storing, loading and merging its state.
  static constexpr std::int64_t kSplitKeys = 512;
  ForwardScratch<E> scratch;
  std::int64_t rows;

  static WideBody take(const Problem& problem, std::int64_t concurrency, Arena& arena) {
    const BlockSize size = block_size<WideBody>(problem, {1, kMostPanels}, concurrency);
    return {take_forward_scratch<E, kWidth>(problem, size.panels, arena), size.rows};
  }
  const ForwardScratch<E>& state() const { return scratch; }
  void forget() const {}
  void compute(const RunContext& context, const QueryBlock& block) const {
    forward_block<E, kColumns>(context, block, scratch);
  }
  void settle(const QueryBlock& block) const {
    if (kRoundsWeights<E>) scale_kept<E, kWidth>(block, scratch);
  }
  std::int64_t part_rows(const QueryBlock& block) const { return block.rows; }
  void count_traffic(const RunContext&, const QueryBlock&) const {}
};

#if TILEWISE_HAS_TILES
// bf16 (one term) and fp16 (two) on the matrix unit.
template <int kTerms>
struct PairBody {
  using Number = float;
  using Factor = float;
  static constexpr int kWidth = kPairWidth;
  static constexpr std::int64_t kKeyGrid = kPairKeys;
  static constexpr std::int64_t kSplitKeys = 4 * kPairKeys;  // they are faster here: see WideBody
  PairScratch scratch;
  std::int64_t rows;

  static PairBody take(const Problem& problem, std::int64_t concurrency, Arena& arena) {
    const BlockSize size =
        block_size<PairBody>(problem, pair_blocking<kTerms>(problem).panels, concurrency);
    return {take_pair_scratch<kTerms>(problem, size.panels, arena), size.rows};
  }
  const ForwardScratch<float>& state() const { return scratch.plain; }
  // The workspace is garbage at first: nothing is packed.
  void forget() const {
    for (std::int64_t s = 0; s < scratch.slots; ++s) scratch.packed[s].batch = -1;
  }
  void compute(const RunContext&, const QueryBlock& block) const {
    forward_block_in_pairs<kTerms>(block, scratch);
  }
  void settle(const QueryBlock& block) const { settle_rows(block, scratch); }
  // Where all keys stay packed, a panel meets them at one go: its Q, its sums and its end are in
  // the L1 and the L2.
  std::int64_t part_rows(const QueryBlock& block) const {
    return block.context.sequence.k_len <= scratch.slots * kPairKeys ? kPairWidth : block.rows;
  }
  void count_traffic(const RunContext& run, const QueryBlock& block) const {
    count_block_traffic(run, block);
  }
};
#endif

// Numbers the blocks of the sequences that are not decoded, a block of several splits as often.
// Returns how many there are for one head.
template <class Body>
std::int64_t number_forward_blocks(const Problem& problem, const Shared& shared,
                                   std::int64_t block_rows) {
  shared.blocks_before[0] = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence& sequence = shared.sequences[b];
    const std::int64_t blocks =
        is_decoded(sequence) ? 0 : math::ceil_div(sequence.q_len, block_rows);
    shared.blocks_before[b + 1] =
        shared.blocks_before[b] +
        blocks * forward_splits(problem, sequence, Body::kSplitKeys).count;
  }
  return shared.blocks_before[problem.batch];
}

// What all workers share of a forward pass.
template <class Body>
struct ForwardShared {
  using T = typename Body::Number;
  Shared blocks;
  Runs runs;
  DecodeShared<T> decode;
  SplitShared<T> splits;
  std::int64_t block_rows;

  static ForwardShared take(const Problem& problem, std::int64_t concurrency, Arena& arena) {
    ForwardShared shared;
    Arena measure(nullptr);
    const Body body = Body::take(problem, concurrency, measure);
    shared.block_rows = body.rows;
    shared.blocks = take_shared(problem, arena);
    shared.runs = take_runs(problem, arena);
    shared.decode = take_decode_shared<T>(problem, arena);
    shared.splits = take_split_shared(problem, body, arena);
    return shared;
  }
};

template <class Body>
std::int64_t forward_workspace(const Problem& problem, std::int64_t concurrency) {
  Arena shared(nullptr);
  ForwardShared<Body>::take(problem, concurrency, shared);
  Arena own(nullptr);
  Body::take(problem, concurrency, own);
  take_decode_scratch<typename Body::Number>(problem, own);
  Arena all(nullptr);
  all.take<char>(shared.bytes());
  std::int64_t workers = 0;
  if (shared.bytes() < 0 || own.bytes() < 0 ||
      __builtin_mul_overflow(own.bytes(), concurrency, &workers))
    return -1;
  all.take<char>(workers);
  return all.bytes();
}

template <class Body>
TILEWISE_INLINE void end_block(const RunContext& run, const QueryBlock& block, const Body& body) {
  body.settle(block);
  store_outputs<typename Body::Factor, Body::kWidth>(block, body.state());
  count_output_traffic(run, block);
}

// A block with all its keys, part by part; the last rows first, for they see the most keys.
template <class Body>
TILEWISE_INLINE void whole_block(const RunContext& run, const QueryBlock& block, const Body& body) {
  const std::int64_t rows = body.part_rows(block);
  for (std::int64_t at = (block.rows - 1) / rows * rows; at >= 0; at -= rows) {
    QueryBlock part = block;
    part.first += at;
    part.rows = math::min(rows, block.rows - at);
    body.compute(run, part);
    end_block(run, part, body);
  }
}

// The block of an item, or of one split of it.
template <class Body>
void forward_item(const Problem& problem, const RunContext& run, const ForwardShared<Body>& shared,
                  std::int64_t number, const Body& body) {
  constexpr int kWidth = Body::kWidth;
  const auto& scratch = body.state();
  const Item item = item_at(problem, shared.blocks, problem.heads, Side::kQueries, number);
  QueryBlock block;
  block.context = {&problem, shared.blocks.sequences[item.batch], item.head, scratch.bands, 0};
  const Sequence& sequence = block.context.sequence;
  block.context.band_count = problem::sequence_bands(problem, sequence, item.head, scratch.bands);
  const ForwardSplits splits = forward_splits(problem, sequence, Body::kSplitKeys);
  const std::int64_t block_number = item.block / splits.count;
  const std::int64_t split = item.block % splits.count;
  block.first = block_number * shared.block_rows;
  block.rows = math::min(shared.block_rows, sequence.q_len - block.first);
  block.keys = keys_of_split(splits, split);
  block.keys = keys_of_block(block);
  body.count_traffic(run, block);
  if (splits.count == 1) return whole_block(run, block, body);
  body.compute(run, block);
  const bool done =
      keep_split<typename Body::Factor, kWidth>(block, split, block_number, scratch, shared.splits);
  count_split_traffic<typename Body::Number>(run, block, done, splits.count);
  if (!done) return;
  merge_splits<typename Body::Factor, kWidth>(block, splits.count, scratch, shared.splits);
  end_block(run, block, body);
}

template <class Body>
Status run_forward(const Problem& problem, const RunContext& run) {
  using T = typename Body::Number;
  Arena arena(run.workspace);
  const auto shared = ForwardShared<Body>::take(problem, run.concurrency, arena);
  const Sequence* const sequences = shared.blocks.sequences;
  char* const scratch_base = static_cast<char*>(run.workspace) + arena.bytes();
  Arena measure(nullptr);
  Body::take(problem, run.concurrency, measure);
  take_decode_scratch<T>(problem, measure);
  problem::fill_sequences(problem, shared.blocks.sequences);
  problem::fill_unowned_rows(problem, sequences);
  start_splits<Body>(problem, sequences, shared.splits);
  const std::int64_t blocks =
      number_forward_blocks<Body>(problem, shared.blocks, shared.block_rows) * problem.heads;
  const std::int64_t decode_items = number_decode_items(problem, sequences, shared.decode);
  number_runs(problem, shared.blocks, shared.runs, blocks, decode_items);
  for (std::int64_t worker = 0; worker < run.concurrency; ++worker) {
    Arena own(scratch_base + worker * measure.bytes());
    Body::take(problem, run.concurrency, own).forget();
  }
  auto body = [&](std::int64_t worker, std::int64_t number) {
    Arena own(scratch_base + worker * measure.bytes());
    const Body worker_body = Body::take(problem, run.concurrency, own);
    DecodeScratch<T> decode_scratch = take_decode_scratch<T>(problem, own);
    if (number < blocks) return forward_item(problem, run, shared, number, worker_body);
    decode_item(problem, run, sequences, shared.decode, number - blocks, decode_items,
                decode_scratch);
  };
  share_runs(run, shared.runs, body);
  return TILEWISE_OK;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
