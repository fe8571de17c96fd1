// The backward pass as a whole: preprocessing (delta), the sweeps for the gradients that are
// wanted, and postprocessing (dQ).
#pragma once

#include "cpu/backward/bias_gradient.h"
#include "cpu/backward/delta.h"
#include "cpu/backward/main_loop.h"
#include "math/integer.h"

namespace tilewise::cpu::TILEWISE_TARGET {

// Rows of queries that a worker takes at a time in preprocessing and postprocessing, enough to
// repay the access to the counter.
inline constexpr std::int64_t kRowBlock = 64;

// Panels of keys that share a pass over the queries. Q and dO are packed once for all of them. With
// D = 128 the panels of K, V, dK and dV take 768 KB of the L2, for any register width.
inline constexpr std::int64_t kMostKeyPanels = 8 * 64 / kVectorBytes;

// The policy of the SIMD kernels, with multiply-adds of operands E: how one worker computes a block
// of keys.
template <class E, int kColumns>
struct SimdBackward {
  using Scratch = KeyScratch<E>;
  struct Packed {};  // copies of Q and dO that all workers share: none, they are read in place
  static constexpr int kPackedCopies = 0;
  static constexpr bool kHasUnits = Operand<E>::kNumbers == 1;
  static constexpr std::int64_t kMostPanels = kMostKeyPanels;

  static Packed take_packed(const Problem&, Arena&) { return {}; }
  static void pack(const HeadContext&, std::int64_t, std::int64_t, const Packed&) {}
  static Scratch take(const Problem& problem, std::int64_t panels, Arena& arena) {
    return take_key_scratch<E, kColumns * Vec<E>::kLanes>(problem, panels, arena);
  }
  // The inner product of a row of dO and one of O.
  template <class Dout, class Out>
  static SumOf<E> inner_product(const Dout* dout, const Out* out, std::int64_t width) {
    return ordered_inner_product<SumOf<E>>(out, dout, width);
  }
  static void run(const RunContext& context, const KeyBlock& block, const KeyPass<SumOf<E>>& pass,
                  const Packed&, const Scratch& scratch) {
    key_block<E, kColumns>(context, block, pass, scratch);
  }
};

// The layout of the workspace of a backward run.
template <class T, class Policy>
struct BackwardWorkspace {
  BlockSchedule shared;
  typename Policy::Packed packed;
  View delta;  // the layout of lse, contiguous
  QueryGradient<T> query_gradient;
  char* scratch;
  std::int64_t scratch_bytes;  // of one worker
  std::int64_t panels;         // of a block of keys
};

// A score function may add up gradients of its own, even if no others are wanted.
TILEWISE_INLINE bool needs_key_sweep(const Problem& problem) {
  return problem.dq.present() || problem.dk.present() || problem.dv.present() ||
         problem.has_score_function();
}

// The larger of the scratch sizes of the sweeps, or -1 on overflow.
template <class T, int kWidth, class Policy>
std::int64_t backward_scratch_bytes(const Problem& problem, std::int64_t panels) {
  Arena keys(nullptr);
  Arena bias(nullptr);
  if (needs_key_sweep(problem)) Policy::take(problem, panels, keys);
  if (problem.dbias.present() || problem.dalibi_slopes.present())
    take_bias_scratch<T, kWidth>(problem, bias);
  if (keys.bytes() < 0 || bias.bytes() < 0) return -1;
  return math::max(keys.bytes(), bias.bytes());
}

// Allocates dQ in the arithmetic type, and one progress number per block of keys.
template <class T, int kWidth>
QueryGradient<T> take_query_gradient(const Problem& problem, std::int64_t panels, Arena& arena) {
  QueryGradient<T> gradient = {};
  gradient.units = arena.take<GradientUnits<T>>(problem::Checked{problem.batch} *
                                                problem::Checked{problem.kv_heads});
  if (!problem.dq.present()) return gradient;
  const std::int64_t batches = problem.q_packed ? 1 : problem.batch;
  const std::int64_t blocks_of_rows = math::ceil_div(problem.k_rows, panels * kWidth);
  const std::int64_t blocks =
      problem.k_packed ? problem.batch + blocks_of_rows : problem.batch * blocks_of_rows;
  gradient.row = padded_head_dim<T>(problem);
  gradient.head = problem.q_rows * gradient.row;
  gradient.batch = problem.q_packed ? 0 : problem.heads * gradient.head;
  std::int64_t count = 0;
  if (__builtin_mul_overflow(batches * problem.heads * problem.q_rows, gradient.row, &count))
    count = INT64_MAX;
  gradient.sums = arena.take<T>(count);
  gradient.progress = arena.take<std::int64_t>(blocks * problem.kv_heads);
  return gradient;
}

template <class T, int kWidth, class Policy>
BackwardWorkspace<T, Policy> take_backward(const Problem& problem, std::int64_t concurrency,
                                           Arena& arena) {
  BackwardWorkspace<T, Policy> workspace;
  workspace.shared = take_schedule(problem, arena);
  workspace.packed = Policy::take_packed(problem, arena);
  const std::int64_t batches = problem.q_packed ? 1 : problem.batch;
  workspace.delta.data = arena.take<T>(batches * problem.heads * problem.q_rows);
  workspace.delta.dtype = kArithmeticDtype<T>;
  workspace.delta.batch = problem.q_packed ? 0 : problem.heads * problem.q_rows;
  workspace.delta.head = problem.q_rows;
  workspace.delta.row = 1;
  const std::int64_t of_head = math::ceil_div(problem.max_k, kWidth);
  workspace.panels = even_panels(of_head, choose_panels(problem.batch * problem.kv_heads, of_head,
                                                        {1, Policy::kMostPanels}, concurrency));
  workspace.query_gradient = take_query_gradient<T, kWidth>(problem, workspace.panels, arena);
  workspace.scratch_bytes = backward_scratch_bytes<T, kWidth, Policy>(problem, workspace.panels);
  std::int64_t all_workers = 0;
  if (workspace.scratch_bytes < 0 ||
      __builtin_mul_overflow(workspace.scratch_bytes, concurrency, &all_workers)) {
    all_workers = INT64_MAX;  // the arena reports the overflow
  }
  workspace.scratch = arena.take<char>(all_workers);
  return workspace;
}

template <class T, int kColumns, class Policy = SimdBackward<T, kColumns>>
std::int64_t backward_workspace(const Problem& problem, std::int64_t concurrency) {
  Arena arena(nullptr);
  take_backward<T, kColumns * Vec<T>::kLanes, Policy>(problem, concurrency, arena);
  return arena.bytes();
}

// Calls run_item(context, first, count) for the blocks of query rows of every sequence and head.
template <class Function>
void sweep_rows(const Problem& problem, const RunContext& run, const BlockSchedule& shared,
                Function& run_item) {
  const std::int64_t blocks = number_blocks(problem, shared, Side::kQueries, kRowBlock);
  auto run_block = [&](std::int64_t, std::int64_t number) {
    const WorkItem item = work_item_at(problem, shared, problem.heads, Side::kQueries, number);
    const HeadContext context = {&problem, shared.sequences[item.batch], item.head, nullptr, 0};
    const std::int64_t first = item.block * kRowBlock;
    run_item(context, first, math::min(kRowBlock, context.sequence.q_len - first));
  };
  run_items(run, shared.next, blocks * problem.heads, run_block);
}

// Preprocessing, before the sweep over keys: delta of every row, dQ = 0, and the packed copies of Q
// and dO, if the policy has any.
template <class T, class Policy>
void preprocess(const Problem& problem, const RunContext& run,
                const BackwardWorkspace<T, Policy>& workspace) {
  const QueryGradient<T>& gradient = workspace.query_gradient;
  auto run_item = [&](const HeadContext& context, std::int64_t first, std::int64_t count) {
    compute_delta<T, Policy>(problem, context, workspace.delta, first, count);
    if (needs_key_sweep(problem)) Policy::pack(context, first, count, workspace.packed);
    count_traffic(run,
                  count * (row_bytes(problem.out, problem.value_dim) +
                           row_bytes(problem.dout, problem.value_dim)),
                  0);
    if (needs_key_sweep(problem) && Policy::kPackedCopies > 0) {
      const std::int64_t rows = count * (row_bytes(problem.q, problem.head_dim) +
                                         row_bytes(problem.dout, problem.value_dim));
      count_traffic(run, rows, Policy::kPackedCopies * rows);
    }
    if (gradient.sums == nullptr) return;
    T* const sums = gradient.at(context, first);
    for (std::int64_t i = 0; i < count * gradient.row; ++i) sums[i] = T(0);
  };
  sweep_rows(problem, run, workspace.shared, run_item);
}

// Postprocessing, after the sweep over keys: stores dQ.
template <class T, class Policy>
void postprocess(const Problem& problem, const RunContext& run,
                 const BackwardWorkspace<T, Policy>& workspace) {
  auto run_item = [&](const HeadContext& context, std::int64_t first, std::int64_t count) {
    store_query_gradient(context, first, count, workspace.query_gradient);
    const std::int64_t stored = count * row_bytes(problem.dq, problem.head_dim);
    count_traffic(run,
                  count * workspace.query_gradient.row * static_cast<std::int64_t>(sizeof(T)) +
                      (problem.accumulate ? stored : 0),
                  stored);
  };
  sweep_rows(problem, run, workspace.shared, run_item);
}

// Chooses the units of every head, from its operands and delta.
template <class T, class Policy>
void sweep_units(const Problem& problem, const RunContext& run,
                 const BackwardWorkspace<T, Policy>& workspace) {
  auto run_item = [&](std::int64_t, std::int64_t number) {
    const Sequence& sequence = workspace.shared.sequences[number / problem.kv_heads];
    GradientUnits<T>& units = workspace.query_gradient.units[number];
    units = {};
    if constexpr (Policy::kHasUnits) {
      units = choose_units(
          problem, sequence,
          measure_head<T>(problem, sequence, number % problem.kv_heads, workspace.delta));
    }
  };
  run_items(run, workspace.shared.next, problem.batch * problem.kv_heads, run_item);
}

template <class T, int kColumns, class Policy>
void sweep_keys(const Problem& problem, const RunContext& run,
                const BackwardWorkspace<T, Policy>& workspace) {
  constexpr int kWidth = kColumns * Vec<T>::kLanes;
  const BlockSchedule& shared = workspace.shared;
  const std::int64_t panels = workspace.panels;
  const QueryGradient<T>& gradient = workspace.query_gradient;
  const std::int64_t blocks = number_blocks(problem, shared, Side::kKeys, panels * kWidth);
  for (std::int64_t i = 0; gradient.sums != nullptr && i < blocks * problem.kv_heads; ++i)
    gradient.progress[i] = 0;
  auto run_item = [&](std::int64_t worker, std::int64_t number) {
    Arena own(workspace.scratch + worker * workspace.scratch_bytes);
    const typename Policy::Scratch scratch = Policy::take(problem, panels, own);
    const WorkItem item = work_item_at(problem, shared, problem.kv_heads, Side::kKeys, number);
    // The number of the block before it, of the same head, is smaller by the number of heads (see
    // work_item_at()).
    const bool ordered = gradient.sums != nullptr;
    const OrderBarrier order = {
        ordered ? gradient.progress + number : nullptr,
        ordered && item.block > 0 ? gradient.progress + number - problem.kv_heads : nullptr};
    KeyBlock block = {&problem,
                      shared.sequences[item.batch],
                      item.head,
                      item.block * panels * kWidth,
                      0,
                      order,
                      &shared.bands};
    block.keys = math::min(panels * kWidth, block.sequence.k_len - block.first);
    const KeyPass<T> pass = {false, true, workspace.delta, gradient, &run};
    Policy::run(run, block, pass, workspace.packed, scratch);
  };
  run_items(run, shared.next, blocks * problem.kv_heads, run_item);
}

template <class T, int kColumns, class Policy>
void sweep_bias(const Problem& problem, const RunContext& run,
                const BackwardWorkspace<T, Policy>& workspace) {
  constexpr int kWidth = kColumns * Vec<T>::kLanes;
  auto run_item = [&](std::int64_t worker, std::int64_t number) {
    Arena own(workspace.scratch + worker * workspace.scratch_bytes);
    const BiasScratch<T> scratch = take_bias_scratch<T, kWidth>(problem, own);
    bias_item<T, kColumns>(problem, workspace.shared, workspace.delta,
                           workspace.query_gradient.units, number, scratch);
  };
  run_items(run, workspace.shared.next, bias_tiles<kWidth>(problem).count, run_item);
}

template <class T, int kColumns, class Policy>
void sweep_slopes(const Problem& problem, const RunContext& run,
                  const BackwardWorkspace<T, Policy>& workspace) {
  constexpr int kWidth = kColumns * Vec<T>::kLanes;
  auto run_item = [&](std::int64_t worker, std::int64_t number) {
    Arena own(workspace.scratch + worker * workspace.scratch_bytes);
    const BiasScratch<T> scratch = take_bias_scratch<T, kWidth>(problem, own);
    slope_item<T, kColumns>(problem, workspace.shared, workspace.delta,
                            workspace.query_gradient.units, number, scratch);
  };
  const std::int64_t slopes = (problem.slopes_per_batch ? problem.batch : 1) * problem.heads;
  run_items(run, workspace.shared.next, slopes, run_item);
}

template <class T, int kColumns, class Policy = SimdBackward<T, kColumns>>
Status run_backward(const Problem& problem, const RunContext& run) {
  Arena arena(run.workspace);
  BackwardWorkspace<T, Policy> workspace =
      take_backward<T, kColumns * Vec<T>::kLanes, Policy>(problem, run.concurrency, arena);
  problem::fill_sequences(problem, workspace.shared.sequences);
  problem::fill_unowned_rows(problem, workspace.shared.sequences);
  problem::build_band_index(problem, problem::SearchedBy::kKeys, workspace.shared.bands);
  preprocess(problem, run, workspace);
  sweep_units(problem, run, workspace);
  if (needs_key_sweep(problem)) sweep_keys<T, kColumns>(problem, run, workspace);
  if (problem.dq.present()) postprocess(problem, run, workspace);
  if (problem.dbias.present()) sweep_bias<T, kColumns>(problem, run, workspace);
  if (problem.dalibi_slopes.present()) sweep_slopes<T, kColumns>(problem, run, workspace);
  if (problem.dsink.present()) {
    auto run_item = [&](std::int64_t, std::int64_t head) {
      sink_gradient<T>(problem, workspace.shared, workspace.delta, workspace.query_gradient.units,
                       head);
    };
    run_items(run, workspace.shared.next, problem.heads, run_item);
  }
  return TILEWISE_OK;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
