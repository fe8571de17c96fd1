// Which blocks of rows there are, and how workers share them: each takes the next number from a
// counter, or from one of several, where what it holds of a head's keys serves the next block.
// Blocks are numbered so that the long ones of a causal mask come first. Who computes a block never
// changes what is computed.
#pragma once

#include "math/integer.h"
#include "problem/arena.h"
#include "problem/kernel.h"
#include "problem/sequence.h"

namespace tilewise::cpu::TILEWISE_TARGET {

using problem::Arena;

using problem::Problem;
using problem::RunContext;
using problem::Sequence;
using problem::Status;

// What all workers share, at the start of the workspace.
struct BlockSchedule {
  Sequence* sequences;          // (B)
  std::int64_t* blocks_before;  // (B + 1): blocks of one head in the sequences before b
  std::int64_t* next;           // the counter
};

TILEWISE_INLINE BlockSchedule take_schedule(const Problem& problem, Arena& arena) {
  BlockSchedule shared;
  shared.sequences = arena.take<Sequence>(problem.batch);
  shared.blocks_before = arena.take<std::int64_t>(problem.batch + 1);
  shared.next = arena.take<std::int64_t>(1);
  return shared;
}

// How many panels a block may have.
struct PanelLimits {
  std::int64_t fewest;  // where two blocks a worker remain
  std::int64_t most;
};

// How many panels (of queries or keys) make a block, for `heads` heads of `panels_of_head` panels:
// at most limits.most, fewer where several workers would have less than four blocks each to share.
// What a block does once for all its panels may make few of them dear: limits.fewest leaves a
// worker two blocks at least. No result depends on it.
TILEWISE_INLINE std::int64_t choose_panels(std::int64_t heads, std::int64_t panels_of_head,
                                           PanelLimits limits, std::int64_t concurrency) {
  std::int64_t panels = limits.most;
  if (concurrency > 1) {
    const std::int64_t all = heads * panels_of_head;
    const std::int64_t fewest = math::min(limits.fewest, all / (2 * concurrency));
    panels = math::min(panels, math::max(fewest, all / (4 * concurrency)));
  }
  return math::clamp(panels_of_head, 1, math::max(panels, 1));
}
// The same number of blocks of `panels` panels or fewer, of one size.
TILEWISE_INLINE std::int64_t even_panels(std::int64_t panels_of_head, std::int64_t panels) {
  const std::int64_t blocks = math::ceil_div(panels_of_head, panels);
  return blocks == 0 ? 1 : math::ceil_div(panels_of_head, blocks);
}

enum class Side { kQueries, kKeys };

// Numbers the blocks of `block_rows` rows of every sequence. Returns how many there are for one
// head.
TILEWISE_INLINE std::int64_t number_blocks(const Problem& problem, const BlockSchedule& shared,
                                           Side side, std::int64_t block_rows) {
  shared.blocks_before[0] = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const std::int64_t length =
        side == Side::kQueries ? shared.sequences[b].q_len : shared.sequences[b].k_len;
    shared.blocks_before[b + 1] = shared.blocks_before[b] + math::ceil_div(length, block_rows);
  }
  return shared.blocks_before[problem.batch];
}

struct WorkItem {
  std::int64_t batch;
  std::int64_t head;   // query head or kv head, as numbered
  std::int64_t block;  // within the sequence
};

// Queries: sequence after sequence, head after head (its keys stay in the cache), last block first:
// it sees the most keys. Keys: sequence after sequence, block after block, the heads of a block
// side by side; the first block is seen by the most queries, and dQ is added up in the order of
// blocks.
TILEWISE_INLINE WorkItem work_item_at(const Problem& problem, const BlockSchedule& shared,
                                      std::int64_t heads, Side side, std::int64_t number) {
  std::int64_t low = 0;
  std::int64_t high = problem.batch;  // the last b with blocks_before[b] * heads <= number
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (shared.blocks_before[middle] * heads <= number ? low : high) = middle;
  }
  const std::int64_t blocks = shared.blocks_before[low + 1] - shared.blocks_before[low];
  const std::int64_t within = number - shared.blocks_before[low] * heads;
  if (side == Side::kKeys) return {low, within % heads, within / heads};
  return {low, within / blocks, blocks - 1 - within % blocks};
}

// Runs body(worker, number) for every number below `count`, with at most `concurrency` workers.
template <class Function>
void run_items(const RunContext& context, std::int64_t* next, std::int64_t count,
               Function& run_item) {
  *next = 0;
  auto worker = [&](std::int64_t index) {
    for (std::int64_t number = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED); number < count;
         number = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) {
      run_item(index, number);
    }
  };
  problem::parallel_for(*context.executor, math::min(context.concurrency, count), worker);
}

// Blocks of queries, numbered by work_item_at(), in runs: the heads of `pairs` pairs of a sequence
// and a kv head. Behind them, one run of other items.
struct HeadQueues {
  std::int64_t* first;  // (count + 2): numbers, and where they end
  std::int64_t* next;   // (count + 1): the counters
  std::int64_t count;   // at most kMostQueues
  std::int64_t pairs;   // of a run
};
inline constexpr std::int64_t kMostQueues = 256;

TILEWISE_INLINE HeadQueues take_head_queues(const Problem& problem, Arena& arena) {
  HeadQueues runs = {};
  const std::int64_t pairs = problem.batch * problem.kv_heads;
  runs.pairs = math::max(math::ceil_div(pairs, kMostQueues), 1);
  runs.count = math::ceil_div(pairs, runs.pairs);
  runs.first = arena.take<std::int64_t>(runs.count + 2);
  runs.next = arena.take<std::int64_t>(runs.count + 1);
  return runs;
}

TILEWISE_INLINE void fill_head_queues(const Problem& problem, const BlockSchedule& shared,
                                      const HeadQueues& runs, std::int64_t blocks,
                                      std::int64_t others) {
  for (std::int64_t run = 0; run < runs.count; ++run) {
    const std::int64_t b = run * runs.pairs / problem.kv_heads;
    const std::int64_t kv_head = run * runs.pairs % problem.kv_heads;
    const std::int64_t of_head = shared.blocks_before[b + 1] - shared.blocks_before[b];
    runs.first[run] = shared.blocks_before[b] * problem.heads +
                      kv_head * (problem.heads / problem.kv_heads) * of_head;
    runs.next[run] = runs.first[run];
  }
  runs.first[runs.count] = runs.next[runs.count] = blocks;
  runs.first[runs.count + 1] = blocks + others;
}

// Runs body(worker, number) for every number of the runs, with at most `concurrency` workers. Each
// begins in a place of its own, stays with a run until all its numbers are taken, and goes on to
// the next: it helps with what others have begun.
template <class Function>
void run_head_queues(const RunContext& context, const HeadQueues& runs, Function& run_item) {
  const std::int64_t numbers = runs.first[runs.count + 1];
  const std::int64_t workers = math::min(context.concurrency, numbers);
  auto worker = [&](std::int64_t index) {
    std::int64_t run = 0;
    while (runs.first[run + 1] <= index * numbers / workers) ++run;
    for (std::int64_t seen = 0; seen <= runs.count; ++seen) {
      const std::int64_t end = runs.first[run + 1];
      std::int64_t* const next = runs.next + run;
      std::int64_t number = __atomic_load_n(next, __ATOMIC_RELAXED);
      while (number < end && (number = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < end)
        run_item(index, number);
      run = run < runs.count ? run + 1 : 0;
    }
  };
  problem::parallel_for(*context.executor, workers, worker);
}

// The same as run_items() with what is next: each worker runs body = start(worker) once and
// body(number, following) for its numbers, where `following` is its next one, or `count` if that is
// not known. The last numbers are taken one by one: nobody holds one that another could begin.
template <class Start>
void run_items_with_next(const RunContext& context, std::int64_t* next, std::int64_t count,
                         Start& start) {
  *next = 0;
  const std::int64_t workers = math::min(context.concurrency, count);
  auto worker = [&](std::int64_t index) {
    auto run_item = start(index);
    const auto take = [&] { return __atomic_fetch_add(next, 1, __ATOMIC_RELAXED); };
    for (std::int64_t number = take(); number < count;) {
      const bool early = number + 2 * workers < count;
      const std::int64_t following = early ? take() : count;
      run_item(number, math::min(following, count));
      number = early ? following : take();
    }
  };
  problem::parallel_for(*context.executor, workers, worker);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
