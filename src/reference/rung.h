// Builds a problem::Kernel from the algorithm of a rung: workspace, threads, arithmetic type and
// counting policy. A rung is
//
//   struct Rung {
//     static constexpr Algorithm kAlgorithm;
//     template <class T>
//     struct Buffers {        // the arrays of one worker
//       std::int64_t widest;  // the longest range of keys whose visibility is found at once
//       static Buffers carve(const problem::Problem&, Arena&);
//     };
//     template <class T, class Counter>
//     static void run(const Group<T, Counter>&, const Buffers<T>&, std::int64_t sram_elements);
//   };
#pragma once

#include <atomic>

#include "math/integer.h"
#include "problem/arena.h"
#include "reference/bias_gradient.h"
#include "reference/group.h"
#include "reference/kernels.h"
#include "reference/traffic.h"

namespace tilewise::reference {

using problem::Arena;
using problem::Checked;

using problem::Problem;
using problem::RunContext;
using problem::Sequence;
using problem::Status;

// The memory that a worker needs for groups.
template <class Rung, class T>
struct GroupSlot {
  typename Rung::template Buffers<T> buffers;
  math::Band* bands;
  std::int64_t* band_counts;
  std::uint8_t* visible;

  static GroupSlot carve(const Problem& problem, Arena& arena) {
    GroupSlot slot;
    slot.buffers = Rung::template Buffers<T>::carve(problem, arena);
    slot.bands =
        arena.take<math::Band>(Checked{problem.group} * Checked{problem::max_bands(problem)});
    slot.band_counts = arena.take<std::int64_t>(Checked{problem.group});
    slot.visible = arena.take<std::uint8_t>(Checked{slot.buffers.widest});
    return slot;
  }
};

// The memory that a worker needs for dbias, dsink and dalibi_slopes.
template <class T>
struct GradientSlot {
  GradientBuffers<T> buffers;
  math::Band* bands;
  std::uint8_t* visible;

  static GradientSlot carve(const Problem& problem, Arena& arena) {
    GradientSlot slot;
    slot.buffers = GradientBuffers<T>::carve(problem, arena);
    slot.bands = arena.take<math::Band>(Checked{problem::max_bands(problem)});
    slot.visible = arena.take<std::uint8_t>(Checked{kGradientColumns});
    return slot;
  }
};

inline std::int64_t group_items(const Problem& problem) { return problem.batch * problem.kv_heads; }

template <class Slot>
Checked slot_bytes(const Problem& problem) {
  Arena arena(nullptr);
  Slot::carve(problem, arena);
  return arena.used();
}

// Returns slot `number` of an array of slots.
template <class Slot>
Slot slot_at(const Problem& problem, char* slots, std::int64_t number) {
  Arena arena(slots + number * slot_bytes<Slot>(problem).value);
  return Slot::carve(problem, arena);
}

// Returns the size of the workspace: the sequence table, then the slots of the groups. The slots of
// the shared gradients are used later and occupy the same memory. -1 if the size exceeds int64.
template <class Rung, class T>
std::int64_t workspace_bytes_of(const Problem& problem, std::int64_t concurrency) {
  Arena table(nullptr);
  table.take<Sequence>(Checked{problem.batch});
  const Checked groups = slot_bytes<GroupSlot<Rung, T>>(problem) *
                         Checked{math::min(concurrency, group_items(problem))};
  const Checked gradients = slot_bytes<GradientSlot<T>>(problem) *
                            Checked{math::min(concurrency, gradient_items(problem))};
  const Checked slots = {math::max(groups.value, gradients.value), groups.valid && gradients.valid};
  const Checked total = table.used() + slots;
  return total.valid ? total.value : -1;
}

// Runs function(slot, item) for the work items 0 .. items-1, each on one worker. A free worker
// takes the next number: the executor decides which worker computes an item, and never what is
// computed.
template <class Function>
void for_each_item(const RunContext& context, std::int64_t items, const Function& function) {
  std::atomic<std::int64_t> next{0};
  auto worker = [&](std::int64_t slot) {
    for (std::int64_t item = next.fetch_add(1); item < items; item = next.fetch_add(1))
      function(slot, item);
  };
  problem::parallel_for(*context.executor, math::min(context.concurrency, items), worker);
}

inline void report(const CountTraffic& counter, problem::Traffic* traffic) {
  std::atomic_ref(traffic->read_bytes).fetch_add(counter.total.read_bytes);
  std::atomic_ref(traffic->written_bytes).fetch_add(counter.total.written_bytes);
}
inline void report(const NoTraffic&, problem::Traffic*) {}

template <class Rung, class T, class Counter>
void run_groups(const Problem& problem, const RunContext& context, const Sequence* sequences,
                char* slots) {
  const std::int64_t sram_bytes =
      context.sram_bytes > 0 ? context.sram_bytes : problem::kDefaultSramBytes;
  const std::int64_t sram_elements = sram_bytes / problem::dtype_size(problem.dtype);
  for_each_item(context, group_items(problem), [&](std::int64_t slot_number, std::int64_t item) {
    const auto slot = slot_at<GroupSlot<Rung, T>>(problem, slots, slot_number);
    Counter counter;
    const Group<T, Counter> group = {.problem = problem,
                                     .sequence = sequences[item / problem.kv_heads],
                                     .kv_head = item % problem.kv_heads,
                                     .bands = slot.bands,
                                     .band_counts = slot.band_counts,
                                     .visible = slot.visible,
                                     .memory = Memory<T, Counter>(&counter)};
    group.find_bands();
    Rung::template run<T, Counter>(group, slot.buffers, sram_elements);
    report(counter, context.traffic);
  });
}

// Computes dbias, dsink and dalibi_slopes.
template <class T, class Counter>
void run_gradients(const Problem& problem, const RunContext& context, const Sequence* sequences,
                   char* slots) {
  for_each_item(context, gradient_items(problem), [&](std::int64_t slot_number, std::int64_t item) {
    const auto slot = slot_at<GradientSlot<T>>(problem, slots, slot_number);
    Counter counter;
    const GradientWorker<T, Counter> worker = {.problem = problem,
                                               .sequences = sequences,
                                               .bands = slot.bands,
                                               .visible = slot.visible,
                                               .buffers = slot.buffers,
                                               .memory = Memory<T, Counter>(&counter)};
    worker.run(item);
    report(counter, context.traffic);
  });
}

template <class Rung, class T, class Counter>
void run_rung(const Problem& problem, const RunContext& context) {
  Arena arena(context.workspace);
  Sequence* const sequences = arena.take<Sequence>(Checked{problem.batch});
  char* const slots = static_cast<char*>(context.workspace) + arena.used().value;
  problem::fill_sequences(problem, sequences);
  problem::fill_unowned_rows(problem, sequences);
  run_groups<Rung, T, Counter>(problem, context, sequences, slots);
  if (problem.operation == problem::Operation::kBackward) {
    run_gradients<T, Counter>(problem, context, sequences, slots);
  }
}

template <class Rung>
struct RungKernel {
  static Status supports(const Problem&, const problem::Machine&) { return TILEWISE_OK; }

  static std::int64_t workspace_bytes(const Problem& problem, std::int64_t concurrency) {
    return problem.dtype == TILEWISE_FP64 ? workspace_bytes_of<Rung, double>(problem, concurrency)
                                          : workspace_bytes_of<Rung, float>(problem, concurrency);
  }

  static double predicted_traffic(const Problem& problem, std::int64_t, std::int64_t sram_bytes) {
    return reference::predicted_traffic(Rung::kAlgorithm, problem, sram_bytes);
  }

  static Status run(const Problem& problem, const RunContext& context) {
    if (context.sram_bytes > kMaxSramBytes) {
      return problem::fail(TILEWISE_INVALID_ARGUMENT, "sram_bytes: is %lld, must be at most %lld",
                           static_cast<long long>(context.sram_bytes),
                           static_cast<long long>(kMaxSramBytes));
    }
    problem.dtype == TILEWISE_FP64 ? run_as<double>(problem, context)
                                   : run_as<float>(problem, context);
    return TILEWISE_OK;
  }

 private:
  template <class T>
  static void run_as(const Problem& problem, const RunContext& context) {
    context.traffic != nullptr ? run_rung<Rung, T, CountTraffic>(problem, context)
                               : run_rung<Rung, T, NoTraffic>(problem, context);
  }
};

template <class Rung>
constexpr problem::Kernel make_kernel(const char* name, const char* description) {
  problem::Kernel kernel = {name,
                            description,
                            RungKernel<Rung>::supports,
                            RungKernel<Rung>::workspace_bytes,
                            RungKernel<Rung>::run,
                            RungKernel<Rung>::predicted_traffic};
  kernel.is_rung = true;
  return kernel;
}

}  // namespace tilewise::reference
