// The blocks of rows of a problem, and the work queues from which workers take them. A worker takes
// the next number from a counter, or from one of several counters where the keys of a head that it
// has in its caches serve the next block too. Blocks are numbered so that the long ones of a causal
// mask come first. Which worker computes a block never changes the result.
#pragma once

#include "math/integer.h"
#include "problem/arena.h"
#include "problem/band_index.h"
#include "problem/kernel.h"
#include "problem/sequence.h"

namespace tilewise::cpu::TILEWISE_TARGET {

using problem::Arena;

using problem::Problem;
using problem::RunContext;
using problem::Sequence;
using problem::Status;

// State that all workers share, at the start of the workspace.
struct BlockSchedule {
  Sequence* sequences;          // (B)
  std::int64_t* blocks_before;  // (B + 1): blocks of one head in the sequences before b
  std::int64_t* next;           // the counter of the work queue
  problem::BandIndex bands;     // of slices
};

TILEWISE_INLINE BlockSchedule take_schedule(const Problem& problem, Arena& arena) {
  BlockSchedule shared;
  shared.sequences = arena.take<Sequence>(problem.batch);
  shared.blocks_before = arena.take<std::int64_t>(problem.batch + 1);
  shared.next = arena.take<std::int64_t>(1);
  shared.bands = problem::take_band_index(problem, arena);
  return shared;
}

// The least and the greatest number of panels of a block.
struct PanelLimits {
  std::int64_t fewest;  // as long as two blocks per worker remain
  std::int64_t most;
};

// The number of panels (of queries or keys) of a block, for `heads` heads of `panels_of_head`
// panels each: at most limits.most, and fewer where several workers would otherwise have less than
// four blocks each. Work that a block does once for all of its panels makes small blocks expensive,
// so that a block keeps limits.fewest panels as long as every worker has two blocks. No result
// depends on it.
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
// The number of panels per block that makes all blocks equally large, without more blocks than
// `panels` panels per block would make.
TILEWISE_INLINE std::int64_t even_panels(std::int64_t panels_of_head, std::int64_t panels) {
  const std::int64_t blocks = math::ceil_div(panels_of_head, panels);
  return blocks == 0 ? 1 : math::ceil_div(panels_of_head, blocks);
}

enum class Side { kQueries, kKeys };

// Numbers the blocks of `block_rows` rows of every sequence. Returns the number of blocks of one
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

// Returns the sequence that a block of a head belongs to: the last b with blocks_before[b] <=
// block.
TILEWISE_INLINE std::int64_t sequence_of_block(const std::int64_t* blocks_before,
                                               std::int64_t batch, std::int64_t block) {
  std::int64_t low = 0;
  std::int64_t high = batch;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (blocks_before[middle] <= block ? low : high) = middle;
  }
  return low;
}

struct WorkItem {
  std::int64_t batch;
  std::int64_t head;   // query head or kv head, depending on the numbering
  std::int64_t block;  // within the sequence
};

// Blocks of queries are ordered by sequence, then by head (whose keys stay in the cache), the last
// block first, because it sees the most keys. Blocks of keys are ordered by sequence, then by
// block, then by head: the first block is seen by the most queries, and dQ is summed up in the
// order of the blocks.
TILEWISE_INLINE WorkItem work_item_at(const Problem& problem, const BlockSchedule& shared,
                                      std::int64_t heads, Side side, std::int64_t number) {
  const std::int64_t low = sequence_of_block(shared.blocks_before, problem.batch, number / heads);
  const std::int64_t blocks = shared.blocks_before[low + 1] - shared.blocks_before[low];
  const std::int64_t within = number - shared.blocks_before[low] * heads;
  if (side == Side::kKeys) return {low, within % heads, within / heads};
  return {low, within / blocks, blocks - 1 - within % blocks};
}

// Calls run_item(worker, number) for every number below `count`, with at most `concurrency`
// workers.
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

// Several work queues over the blocks of queries: a queue has the blocks of `pairs` pairs
// (sequence, kv head), as numbered by work_item_at(). After them there is one queue of other items.
struct HeadQueues {
  std::int64_t* first;  // (count + 2): the first number of each queue, and the end of the last
  std::int64_t* next;   // (count + 1): the counters
  std::int64_t count;   // at most kMostQueues
  std::int64_t pairs;   // in one queue
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

// Calls run_item(worker, number) for every number of the queues, with at most `concurrency`
// workers. Every worker begins in a queue of its own, stays with it until all of its numbers are
// taken, and then helps with the next one.
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

// run_items() for functions that prefetch: each worker calls run_item = start(worker) once, and
// then run_item(number, following) for its numbers. `following` is its next number, or `count` if
// that is not known yet. The last numbers are taken one by one, so that no worker holds one that
// another could begin.
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
