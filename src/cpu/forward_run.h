// The forward pass as a whole: blocks of queries and decoded sequences, shared among workers.
#pragma once

#include "cpu/decode.h"
#include "cpu/forward.h"
#include "cpu/pair_forward.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Panels of queries that share a pass over the keys: K and V are packed, and read from the L3, once
// for all of them. With D = 128 they take 48 KB each of the L2.
inline constexpr std::int64_t kMostPanels = 16;

// Panels of a block of queries, and its rows. Room is made for the panels: evening out depends on
// the length, and the workspace must not.
struct BlockSize {
  std::int64_t panels;
  std::int64_t rows;
};
template <int kWidth>
TILEWISE_INLINE BlockSize block_size(const Problem& problem, std::int64_t most,
                                     std::int64_t concurrency) {
  const std::int64_t of_head = divide_up(problem.max_q, kWidth);
  const std::int64_t panels =
      choose_panels(problem.batch * problem.heads, of_head, most, concurrency);
  return {panels, even_panels(of_head, panels) * kWidth};
}

// How one worker computes blocks, and how many rows they have: multiply-adds of operands E.
template <class E, int kColumns>
struct WideBody {
  using Number = SumOf<E>;
  static constexpr int kWidth = kColumns * Vec<E>::kLanes;
  static constexpr std::int64_t kKeyGrid =
      Operand<E>::kNumbers;  // keys are read from a multiple on
  ForwardScratch<E> scratch;
  std::int64_t rows;

  static WideBody take(const Problem& problem, std::int64_t concurrency, Arena& arena) {
    const BlockSize size = block_size<kWidth>(problem, kMostPanels, concurrency);
    return {take_forward_scratch<E, kWidth>(problem, size.panels, arena), size.rows};
  }
  Band* bands() const { return scratch.bands; }
  void forget() const {}
  void run(const RunContext& context, const QueryBlock& block) const {
    forward_block<E, kColumns>(context, block, scratch);
  }
};

#if TILEWISE_HAS_TILES
// bf16 (one term) and fp16 (two) on the matrix unit.
template <int kTerms>
struct PairBody {
  using Number = float;
  static constexpr std::int64_t kKeyGrid = kPairKeys;
  PairScratch scratch;
  std::int64_t rows;

  static PairBody take(const Problem& problem, std::int64_t concurrency, Arena& arena) {
    const BlockSize size = block_size<kPairWidth>(problem, kMostPairPanels, concurrency);
    return {take_pair_scratch<kTerms>(problem, size.panels, arena), size.rows};
  }
  Band* bands() const { return scratch.plain.bands; }
  // The workspace is garbage at first: nothing is packed.
  void forget() const {
    for (std::int64_t s = 0; s < scratch.slots; ++s) scratch.packed[s].batch = -1;
  }
  void run(const RunContext& context, const QueryBlock& block) const {
    forward_block_in_pairs<kTerms>(context, block, scratch);
  }
};
#endif

// Numbers the blocks of the sequences that are not decoded. Returns how many there are for one
// head.
TILEWISE_INLINE std::int64_t number_forward_blocks(const Problem& problem, const Shared& shared,
                                                   std::int64_t block_rows) {
  shared.blocks_before[0] = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence& sequence = shared.sequences[b];
    const std::int64_t blocks = is_decoded(sequence) ? 0 : divide_up(sequence.q_len, block_rows);
    shared.blocks_before[b + 1] = shared.blocks_before[b] + blocks;
  }
  return shared.blocks_before[problem.batch];
}

template <class Body>
std::int64_t forward_workspace(const Problem& problem, std::int64_t concurrency) {
  using T = typename Body::Number;
  Arena shared(nullptr);
  take_shared(problem, shared);
  take_decode_shared<T>(problem, shared);
  Arena own(nullptr);
  Body::take(problem, concurrency, own);
  take_decode_scratch<T>(problem, own);
  Arena all(nullptr);
  all.take<char>(shared.used());
  std::int64_t workers = 0;
  if (shared.used() < 0 || own.used() < 0 ||
      __builtin_mul_overflow(own.used(), concurrency, &workers))
    return -1;
  all.take<char>(workers);
  return all.used();
}

template <class Body>
Status run_forward(const Problem& problem, const RunContext& run) {
  using T = typename Body::Number;
  Arena arena(run.workspace);
  const Shared shared = take_shared(problem, arena);
  const DecodeShared<T> decode = take_decode_shared<T>(problem, arena);
  char* const scratch_base = static_cast<char*>(run.workspace) + arena.used();
  Arena measure(nullptr);
  const std::int64_t block_rows = Body::take(problem, run.concurrency, measure).rows;
  take_decode_scratch<T>(problem, measure);
  problem::fill_sequences(problem, shared.sequences);
  problem::fill_unowned_rows(problem, shared.sequences);
  const std::int64_t blocks = number_forward_blocks(problem, shared, block_rows) * problem.heads;
  const std::int64_t decode_items = number_decode_items(problem, shared.sequences, decode);
  for (std::int64_t worker = 0; worker < run.concurrency; ++worker) {
    Arena own(scratch_base + worker * measure.used());
    Body::take(problem, run.concurrency, own).forget();
  }
  auto body = [&](std::int64_t worker, std::int64_t number) {
    Arena own(scratch_base + worker * measure.used());
    const Body worker_body = Body::take(problem, run.concurrency, own);
    const DecodeScratch<T> decode_scratch = take_decode_scratch<T>(problem, own);
    if (number >= blocks) {
      return decode_item(problem, run, shared.sequences, decode, number - blocks, decode_scratch);
    }
    const Item item = item_at(problem, shared, problem.heads, Side::kQueries, number);
    QueryBlock block;
    block.context = {&problem, shared.sequences[item.batch], item.head, worker_body.bands(), 0};
    block.context.band_count =
        problem::sequence_bands(problem, block.context.sequence, item.head, worker_body.bands());
    block.first = item.block * block_rows;
    block.rows = math::lesser(block_rows, block.context.sequence.q_len - block.first);
    worker_body.run(run, block);
  };
  share_items(run, shared.next, blocks + decode_items, body);
  return TILEWISE_OK;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
