// Split-KV in the forward pass, for sequences with too many queries to be decoded and too few to
// give every thread a block. Their keys are cut into splits, whose states are merged in the order
// of the splits (math/softmax_state.h). The cuts depend on the sequence alone: not on the number of
// threads, nor on the rest of the batch.
#pragma once

#include "cpu/decode/plan.h"
#include "cpu/forward/block.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// A sequence with at least so many rows (queries of all heads) is not split: they are 32 panels of
// 32 rows for 16 threads. A sequence with fewer rows is split until it has as many.
inline constexpr std::int64_t kEnoughRows = 1024;

// Split s has the keys [begin + s * length, begin + (s + 1) * length).
struct ForwardSplits {
  std::int64_t begin;
  std::int64_t length;
  std::int64_t count;
};

// The greatest number of splits of a sequence, where `tiles` is the number of the smallest possible
// splits. seqused_q changes nothing: the states have room for this many. Packed queries are not
// split, because the number of states that they need is known only at run time.
TILEWISE_INLINE std::int64_t most_splits(const Problem& problem, std::int64_t tiles) {
  const std::int64_t rows = problem.heads * problem.max_q;  // they all exist in memory: no overflow
  if (problem.q_packed || rows == 0) return 1;
  return math::clamp(kEnoughRows / rows, 1, math::max(tiles, 1));
}

// split_keys: the length of a split is a multiple of it
TILEWISE_INLINE ForwardSplits forward_splits(const Problem& problem, const Sequence& sequence,
                                             std::int64_t split_keys) {
  const math::KeyRange keys = decode_range(problem, sequence);
  const std::int64_t begin = keys.begin / split_keys * split_keys;
  const std::int64_t tiles = math::ceil_div(keys.end - begin, split_keys);
  const std::int64_t most = most_splits(problem, tiles);
  if (most == 1) return {0, sequence.k_len, 1};
  const std::int64_t of_split = math::ceil_div(tiles, most);
  return {begin, of_split * split_keys, math::ceil_div(tiles, of_split)};
}

TILEWISE_INLINE math::KeyRange keys_of_split(const ForwardSplits& splits, std::int64_t split) {
  const std::int64_t begin = splits.begin + split * splits.length;
  return {begin, begin + splits.length};
}

// Splits of a sequence of the planned shape: max_q queries, and at most max_k keys.
TILEWISE_INLINE std::int64_t planned_splits(const Problem& problem, std::int64_t split_keys) {
  return most_splits(problem, math::ceil_div(problem.max_k, split_keys));
}

// State that all workers share. It is empty if no sequence is split.
template <class T>
struct SplitShared {
  std::int64_t* pending;  // (B, H, blocks): splits that are not done yet
  T* max;                 // (B, H, panels, splits, kWidth)
  T* sum;                 // the shape of max
  T* out;                 // (B, H, panels, splits, rows of values, kWidth)
  T* out_unit;            // (B, H, panels, splits): at most 1; see ForwardScratch
  std::int64_t blocks;    // of one head
  std::int64_t panels;    // of one head
  std::int64_t splits;    // at most, of one sequence
};

template <class Policy>
auto take_split_shared(const Problem& problem, const Policy& policy, Arena& arena) {
  using T = typename Policy::Number;
  SplitShared<T> shared = {};
  shared.splits = planned_splits(problem, Policy::kSplitKeys);
  shared.blocks = math::ceil_div(problem.max_q, policy.rows);
  shared.panels = math::ceil_div(problem.max_q, Policy::kWidth);
  const std::int64_t heads = shared.splits > 1 ? problem.batch * problem.heads : 0;
  const std::int64_t panels = heads * shared.panels * shared.splits;
  shared.pending = arena.take<std::int64_t>(heads * shared.blocks);
  shared.max = arena.take<T>(panels * Policy::kWidth);
  shared.sum = arena.take<T>(panels * Policy::kWidth);
  shared.out = arena.take<T>(panels * policy.state().out_panel);
  shared.out_unit = arena.take<T>(panels);
  return shared;
}

template <class Policy>
void start_splits(const Problem& problem, const Sequence* sequences,
                  const SplitShared<typename Policy::Number>& shared) {
  if (shared.splits == 1) return;
  const std::int64_t of_sequence = problem.heads * shared.blocks;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const std::int64_t count = forward_splits(problem, sequences[b], Policy::kSplitKeys).count;
    for (std::int64_t i = 0; i < of_sequence; ++i) shared.pending[b * of_sequence + i] = count;
  }
}

// The position of the state of a panel among the shared states, in panels.
template <class T, int kWidth>
TILEWISE_INLINE std::int64_t split_slot(const QueryBlock& block, std::int64_t panel,
                                        std::int64_t split, const SplitShared<T>& shared) {
  const HeadContext& context = block.context;
  const std::int64_t head = context.sequence.batch * context.problem->heads + context.head;
  return (head * shared.panels + block.first / kWidth + panel) * shared.splits + split;
}

// Stores the states of a block's panels. Returns true if all splits of the block are now done.
template <class E, int kWidth>
bool store_split_state(const QueryBlock& block, std::int64_t split, std::int64_t block_number,
                       const ForwardScratch<E>& scratch, const SplitShared<SumOf<E>>& shared) {
  using T = SumOf<E>;
  for (std::int64_t panel = 0; panel * kWidth < block.rows; ++panel) {
    const std::int64_t slot = split_slot<T, kWidth>(block, panel, split, shared);
    const std::int64_t size = scratch.out_panel;
    __builtin_memcpy(shared.max + slot * kWidth, scratch.max + panel * kWidth, kWidth * sizeof(T));
    __builtin_memcpy(shared.sum + slot * kWidth, scratch.sum + panel * kWidth, kWidth * sizeof(T));
    __builtin_memcpy(shared.out + slot * size, scratch.out_panels + panel * size,
                     static_cast<std::size_t>(size) * sizeof(T));
    const T unit = scratch.out_unit[panel];
    for (std::int64_t i = 0; unit > T(1) && i < size; ++i) shared.out[slot * size + i] /= unit;
    shared.out_unit[slot] = unit == T(0) ? T(1) : math::minimum(unit, T(1));
  }
  const HeadContext& context = block.context;
  const std::int64_t head = context.sequence.batch * context.problem->heads + context.head;
  return __atomic_sub_fetch(shared.pending + head * shared.blocks + block_number, 1,
                            __ATOMIC_ACQ_REL) == 0;
}

// Merges one register of states and outputs into those of the scratch.
template <class T, int kWidth>
TILEWISE_INLINE void merge_lanes(const math::ScaleLog2<Vec<T>>& scale_log2, std::int64_t values,
                                 const T* more_max, const T* more_sum, const T* more_out, T* max,
                                 T* sum, T* out) {
  const math::Merged<Vec<T>> merged = math::merge(
      math::SoftmaxState<Vec<T>>{Vec<T>::load(max), Vec<T>::load(sum)},
      math::SoftmaxState<Vec<T>>{Vec<T>::load(more_max), Vec<T>::load(more_sum)}, scale_log2);
  merged.state.max.store(max);
  merged.state.sum.store(sum);
  for (std::int64_t c = 0; c < values; ++c) {
    (math::combine(merged.factor_a, Vec<T>::load(out + c * kWidth)) +
     math::combine(merged.factor_b, Vec<T>::load(more_out + c * kWidth)))
        .store(out + c * kWidth);
  }
}

// Brings the outputs of a panel's splits to the least of their units. Returns it.
template <class T>
T make_units_equal(std::int64_t first, std::int64_t splits, std::int64_t size,
                   const SplitShared<T>& shared) {
  const T* const units = shared.out_unit + first;
  T least = T(1);
  for (std::int64_t s = 0; s < splits; ++s) least = math::minimum(least, units[s]);
  for (std::int64_t s = 0; s < splits; ++s) {
    if (units[s] == least) continue;
    T* const out = shared.out + (first + s) * size;
    for (std::int64_t i = 0; i < size; ++i) out[i] *= least / units[s];
  }
  return least;
}

// Merges the splits of a block, in their order, into the scratch.
template <class E, int kWidth>
void merge_splits(const QueryBlock& block, std::int64_t splits, const ForwardScratch<E>& scratch,
                  const SplitShared<SumOf<E>>& shared) {
  using T = SumOf<E>;
  const math::ScaleLog2<Vec<T>> scale_log2 = ScoreScaling<T>(*block.context.problem).scale_log2();
  const std::int64_t values = block.context.problem->value_dim;
  const std::int64_t size = scratch.out_panel;
  for (std::int64_t panel = 0; panel * kWidth < block.rows; ++panel) {
    T* const max = scratch.max + panel * kWidth;
    T* const sum = scratch.sum + panel * kWidth;
    T* const out = scratch.out_panels + panel * size;
    const std::int64_t first = split_slot<T, kWidth>(block, panel, 0, shared);
    scratch.out_unit[panel] = make_units_equal(first, splits, size, shared);
    __builtin_memcpy(max, shared.max + first * kWidth, kWidth * sizeof(T));
    __builtin_memcpy(sum, shared.sum + first * kWidth, kWidth * sizeof(T));
    __builtin_memcpy(out, shared.out + first * size, static_cast<std::size_t>(size) * sizeof(T));
    for (std::int64_t slot = first + 1; slot < first + splits; ++slot) {
      for (int lane = 0; lane < kWidth; lane += Vec<T>::kLanes) {
        merge_lanes<T, kWidth>(scale_log2, values, shared.max + slot * kWidth + lane,
                               shared.sum + slot * kWidth + lane, shared.out + slot * size + lane,
                               max + lane, sum + lane, out + lane);
      }
    }
  }
}

// Traffic of storing and merging the states.
template <class T>
void count_split_traffic(const RunContext& run, const QueryBlock& block, bool merged,
                         std::int64_t splits) {
  const std::int64_t state =
      block.rows * block.context.problem->value_dim * static_cast<std::int64_t>(sizeof(T));
  count_traffic(run, merged ? splits * state : 0, state);
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
