// Quantisation: rows are read once, measured while they are in the caches, and written. Scales of
// the whole tensor or of heads need the rows twice: one pass measures, another one writes. Largest
// magnitudes are the same in any order, so that neither threads nor registers change a bit.
#pragma once

#include "cpu/quantise/rotation.h"
#include "cpu/quantise/work.h"
#include "problem/kernel.h"

namespace tilewise::cpu::TILEWISE_TARGET {

using problem::RunContext;

template <class Function>
TILEWISE_INLINE void with_input(std::int32_t dtype, Function function) {
  if (dtype == TILEWISE_FP32) return function(float{});
  if (dtype == TILEWISE_BF16) return function(math::BFloat16{});
  return function(math::Float16{});
}

class Quantiser {
 public:
  Quantiser(const Quantisation& task, const Work& work, const SharedMemory& shared)
      : task_(task), work_(work), shared_(shared), group_(task.group()) {}

  // Adds the item to the largest magnitudes of the tensor or of its heads. `next`: prefetched
  void measure(const Item& item, const Item& next, const WorkerMemory& memory) const {
    bool finite = true;  // of no use here
    measure_rows(item, &next, memory, finite);
    for (std::int64_t h = 0; h < item.heads; ++h) {
      const std::uint32_t bits = largest_of_head(memory, h);
      const std::int64_t index =
          task_.shared == Shared::kTensor ? 0 : item.sequence * task_.kv_heads + item.head + h;
      std::uint32_t* const largest = shared_.largest + index;
      std::uint32_t known = __atomic_load_n(largest, __ATOMIC_RELAXED);
      while (known < bits && !__atomic_compare_exchange_n(largest, &known, bits, true,
                                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
      }
    }
  }

  // Writes the item, and the scales of its block if they are computed. `next`: prefetched
  void write(const Item& item, const Item& next, const WorkerMemory& memory) const {
    const bool computes = task_.shared == Shared::kBlock && !task_.fixed_scales;
    bool finite = computes;
    if (computes) measure_rows(item, nullptr, memory, finite);
    const Range range = finite                       ? Range::kSmall
                        : task_.saturated != nullptr ? Range::kCounted
                                                     : Range::kAny;
    for (std::int64_t h = 0; h < item.heads && task_.shared != Shared::kNothing; ++h) {
      float* const scale = scale_at(item.sequence, item.head + h, item.block);
      if (computes) *scale = task_.scale_of(largest_of_head(memory, h));
      memory.inverse[h] = 1.0f / *scale;
    }
    LaneBits saturated = {};
    with_output(range,
                [&](auto coder) { write_rows<decltype(coder)>(item, next, memory, saturated); });
    if (work_.streams) end_stream();
    std::int64_t count = 0;
    for (int i = 0; i < Vec<float>::kLanes; ++i) count += saturated[i];
    if (count != 0) __atomic_fetch_add(task_.saturated, count, __ATOMIC_RELAXED);
  }

  // Scales of the tensor or of heads, after all items were measured.
  void write_scales() const {
    for (std::int64_t i = 0; i < scale_count(task_); ++i) {
      const std::int64_t sequence = i / math::max(task_.kv_heads, 1);
      *scale_at(sequence, i % math::max(task_.kv_heads, 1), 0) = task_.scale_of(shared_.largest[i]);
    }
  }

 private:
  float* scale_at(std::int64_t sequence, std::int64_t head, std::int64_t block) const {
    return static_cast<float*>(task_.descale.data) + task_.descale.offset(sequence, head, block);
  }
  // Prefetches row r of the i-th head of an item into the second-level cache, while another item is
  // in work.
  TILEWISE_INLINE void prefetch(const Item& item, std::int64_t r, std::int64_t i) const {
    if (r >= item.rows.count || i >= item.heads * group_) return;
    constexpr std::int64_t kLine = 64;
    const std::int64_t size = problem::dtype_size(task_.input.dtype);
    const char* const row =
        static_cast<const char*>(task_.input.data) +
        task_.input.offset(item.rows.batch, item.head * group_ + i, item.rows.first + r) * size;
    for (std::int64_t at = 0; at < task_.width * size; at += kLine)
      __builtin_prefetch(row + at, 0, 2);
  }

  template <class S>
  TILEWISE_INLINE const S* input_row(const Item& item, std::int64_t r, std::int64_t i) const {
    return static_cast<const S*>(task_.input.data) +
           task_.input.offset(item.rows.batch, item.head * group_ + i, item.rows.first + r);
  }
  static std::uint32_t largest_of_head(const WorkerMemory& memory, std::int64_t h) {
    return largest_lane(LaneBits(Vec<float>::load(memory.largest + h * Vec<float>::kLanes).v));
  }

  // Rotates a row into memory.stage, and returns where. `slot`: of rows that are staged
  template <class S>
  const float* rotate(const S* from, std::int64_t slot, const WorkerMemory& memory) const {
    float* const to = memory.stage + (stages_items(task_) ? slot * task_.width : 0);
    rotate_row(from, task_.width, shared_.factors, to);
    if (has_non_finite(to, task_.width)) spread_nan(to, task_.width);
    return to;
  }

  // The largest magnitudes of the heads of an item, in memory.largest. `next`: prefetched if not
  // nullptr. A number that is not finite makes `finite` false.
  void measure_rows(const Item& item, const Item* next, const WorkerMemory& memory,
                    bool& finite) const {
    constexpr std::int64_t kLanes = Vec<float>::kLanes;
    for (std::int64_t i = 0; i < item.heads * kLanes; ++i) memory.largest[i] = 0;
    with_input(task_.input.dtype, [&](auto number) {
      using S = decltype(number);
      for (std::int64_t r = 0; r < item.rows.count; ++r) {
        for (std::int64_t h = 0, i = 0; h < item.heads; ++h) {
          LaneBits bits = LaneBits(Vec<float>::load(memory.largest + h * kLanes).v);
          for (std::int64_t g = 0; g < group_; ++g, ++i) {
            if (next != nullptr) prefetch(*next, r, i);
            const S* const row = input_row<S>(item, r, i);
            bits = task_.incoherent
                       ? largest_of_row(rotate(row, r * item.heads * group_ + i, memory),
                                        task_.width, bits, finite)
                       : largest_of_row(row, task_.width, bits, finite);
          }
          Vec<float>(Vec<float>::Native(bits)).store(memory.largest + h * kLanes);
        }
      }
    });
  }

  // Calls function(coder) with what writes a row of the output.
  template <class Function>
  void with_output(Range range, Function function) const {
    if (task_.output.dtype == TILEWISE_E4M3) return with_range<math::Float8E4M3>(range, function);
    if (task_.output.dtype == TILEWISE_E5M2) return with_range<math::Float8E5M2>(range, function);
    with_input(task_.output.dtype, [&](auto number) { function(Wide<decltype(number)>{}); });
  }
  template <class Format, class Function>
  static void with_range(Range range, Function function) {
    if (range == Range::kSmall) return function(Coder<Format, Range::kSmall>{});
    if (range == Range::kAny) return function(Coder<Format, Range::kAny>{});
    function(Coder<Format, Range::kCounted>{});
  }

  // Writes the rows of an item: from memory.stage, or from the input.
  template <class Output>
  void write_rows(const Item& item, const Item& next, const WorkerMemory& memory,
                  LaneBits& saturated) const {
    const std::int64_t heads = item.heads * group_;
    if (stages_items(task_)) {
      return write_rows_from<Output>(item, next, memory, saturated,
                                     [&](std::int64_t r, std::int64_t i) {
                                       return memory.stage + (r * heads + i) * task_.width;
                                     });
    }
    with_input(task_.input.dtype, [&](auto number) {
      using S = decltype(number);
      if (task_.incoherent) {
        write_rows_from<Output>(item, next, memory, saturated, [&](std::int64_t r, std::int64_t i) {
          return rotate(input_row<S>(item, r, i), 0, memory);
        });
      } else if constexpr (Output::kReadsInput) {
        write_rows_from<Output>(item, next, memory, saturated, [&](std::int64_t r, std::int64_t i) {
          return input_row<S>(item, r, i);
        });
      }
    });
  }

  // row_at(r, i): row r of the i-th head of the item
  template <class Output, class RowAt>
  TILEWISE_INLINE void write_rows_from(const Item& item, const Item& next,
                                       const WorkerMemory& memory, LaneBits& saturated,
                                       RowAt row_at) const {
    const std::int64_t bytes = task_.width * Output::kSize;
    LaneBits counts = saturated;
    for (std::int64_t r = 0; r < item.rows.count; ++r) {
      std::uint8_t* to = memory.output;
      for (std::int64_t h = 0, i = 0; h < item.heads; ++h) {
        for (std::int64_t g = 0; g < group_; ++g, ++i, to += bytes) {
          prefetch(next, r, i);
          Output::write(row_at(r, i), task_.width, memory.inverse[h], to, counts);
        }
      }
      copy_out(item, r, memory.output, bytes, Output::kSize);
    }
    saturated = counts;
  }

  // Copies row r of the item's heads to where it belongs, at once if its heads are neighbours.
  void copy_out(const Item& item, std::int64_t r, const std::uint8_t* from, std::int64_t bytes,
                std::int64_t size) const {
    if (bytes == 0) return;  // no columns, and perhaps no memory
    const std::int64_t heads = item.heads * group_;
    const std::int64_t joined = task_.output.head == task_.width ? heads : 1;
    for (std::int64_t i = 0; i < heads; i += joined, from += joined * bytes) {
      std::uint8_t* const to =
          static_cast<std::uint8_t*>(task_.output.data) +
          task_.output.offset(item.rows.batch, item.head * group_ + i, item.rows.first + r) * size;
      if (work_.streams) {
        stream_bytes(from, joined * bytes, to);
      } else {
        __builtin_memcpy(to, from, static_cast<std::size_t>(joined * bytes));
      }
    }
  }

  const Quantisation& task_;
  const Work& work_;
  const SharedMemory& shared_;
  std::int64_t group_;
};

inline std::int64_t quantise_workspace(const Quantisation& task, std::int64_t concurrency) {
  const Work work = work_of(task);
  Arena arena;
  take_shared(task, arena);
  for (std::int64_t i = 0; i < math::clamp(concurrency, 1, math::max(work.items, 1)); ++i)
    take_worker(task, work, arena);
  return arena.bytes();
}

// Calls visit(item, memory) for every item, on the threads of the executor.
template <class Function>
void for_each_item(const Quantisation& task, const Work& work, const SharedMemory& shared,
                   const RunContext& run, std::int64_t* next, Function visit) {
  Arena arena(run.workspace);
  take_shared(task, arena);
  *next = 0;
  const std::int64_t workers = math::clamp(run.concurrency, 1, math::max(work.items, 1));
  const std::int64_t first = arena.used().value;
  take_worker(task, work, arena);
  const std::int64_t stride = arena.used().value - first;
  auto worker = [&](std::int64_t number) {
    Arena own(static_cast<char*>(run.workspace) + first + number * stride);
    const WorkerMemory memory = take_worker(task, work, own);
    const auto take = [&] { return __atomic_fetch_add(next, 1, __ATOMIC_RELAXED); };
    for (std::int64_t i = take(), after = take(); i < work.items; i = after, after = take()) {
      const Item following = after < work.items ? item_at(task, work, shared, after) : Item{};
      visit(item_at(task, work, shared, i), following, memory);
    }
  };
  problem::parallel_for(*run.executor, workers, worker);
}

// Zeros of the tokens that belong to no sequence.
inline void fill_unowned(const Quantisation& task) {
  if (!task.cu_seqlens.present() || task.width == 0) return;
  const std::int64_t last = task.cu_seqlens.count - 1;
  const std::int64_t begin = task.cu_seqlens.at(0);
  const std::int64_t end = task.cu_seqlens.at(last);
  for (std::int64_t row = 0; row < task.rows; ++row) {
    if (row >= begin && row < end) continue;
    for (std::int64_t head = 0; head < task.heads; ++head) {
      __builtin_memset(
          static_cast<std::uint8_t*>(task.output.data) + task.output.offset(0, head, row), 0,
          static_cast<std::size_t>(task.width));
    }
  }
}

inline void run_quantise(const Quantisation& task, const RunContext& run) {
  const Work work = work_of(task);
  Arena arena(run.workspace);
  const SharedMemory shared = take_shared(task, arena);
  number_blocks(task, shared);
  if (task.incoherent) fill_factors(task.width, task.seed, shared.factors);
  const Quantiser quantiser(task, work, shared);
  if (task.computes_scales() && task.shared != Shared::kBlock) {
    for (std::int64_t i = 0; i < scale_count(task); ++i) shared.largest[i] = 0;
    for_each_item(task, work, shared, run, shared.next,
                  [&](const Item& item, const Item& next, const WorkerMemory& memory) {
                    quantiser.measure(item, next, memory);
                  });
    quantiser.write_scales();
  }
  fill_unowned(task);
  for_each_item(task, work, shared, run, shared.next + 1,
                [&](const Item& item, const Item& next, const WorkerMemory& memory) {
                  quantiser.write(item, next, memory);
                });
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
