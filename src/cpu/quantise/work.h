// The work items of a quantisation: blocks of 128 rows of a sequence, times the heads that share
// caches; and the memory of a worker.
#pragma once

#include "cpu/common/schedule.h"
#include "cpu/quantise/row.h"
#include "math/integer.h"
#include "problem/quantisation.h"

namespace tilewise::cpu::TILEWISE_TARGET {

using problem::kDescaleRows;
using problem::Quantisation;
using problem::SequenceRows;
using problem::Shared;

// The heads of an item are so many that its rows, read twice, and those of the next item stay in
// the second-level cache, and neighbours in memory are read together.
inline constexpr std::int64_t kItemBytes = std::int64_t{512} * 1024;
// Results of this size are in no cache when they are read.
inline constexpr std::int64_t kStreamedBytes = std::int64_t{32} << 20;

struct Work {
  std::int64_t chunk_heads;  // kv heads of an item
  std::int64_t chunks;       // of a block
  std::int64_t items;
  bool streams;

  std::int64_t chunk_floats(const Quantisation& task) const {  // of a row
    return chunk_heads * task.group() * task.width;
  }
};

// Whether the rotated rows of an item are kept until its scales are known.
inline bool stages_items(const Quantisation& task) {
  return task.incoherent && task.shared == Shared::kBlock && !task.fixed_scales;
}

inline std::int64_t blocks_of(const Quantisation& task, std::int64_t sequence) {
  return math::ceil_div(rows_of(task, sequence).count, kDescaleRows);
}

inline Work work_of(const Quantisation& task) {
  Work work;
  std::int64_t blocks = 0;
  for (std::int64_t b = 0; b < task.sequences; ++b) blocks += blocks_of(task, b);
  const std::int64_t size = stages_items(task) ? 4 : problem::dtype_size(task.input.dtype);
  const std::int64_t bytes = math::max(kDescaleRows * task.group() * task.width * size, 1);
  work.chunk_heads = math::clamp(kItemBytes / bytes, 1, math::max(task.kv_heads, 1));
  work.chunks = math::ceil_div(task.kv_heads, work.chunk_heads);
  work.items = blocks * work.chunks;
  const std::int64_t rows = task.cu_seqlens.present() ? task.rows : task.sequences * task.rows;
  const std::int64_t element = problem::dtype_size(task.output.dtype);
  work.streams = rows * task.heads * task.width * element >= kStreamedBytes;
  return work;
}

// Rows first to first + count of a sequence, and kv heads head to head + heads.
struct Item {
  SequenceRows rows;
  std::int64_t sequence;
  std::int64_t block;
  std::int64_t head;
  std::int64_t heads;
};
// The memory that all workers share.
struct SharedMemory {
  std::int64_t* blocks_before;  // (sequences + 1): blocks in the sequences before
  float* factors;               // (D), of the rotation
  std::uint32_t* largest;  // scales of the tensor or of heads: the bits of the largest magnitude
  std::int64_t* next;      // counters of the items of the two passes
};
struct WorkerMemory {
  float* stage;          // (128, floats of a chunk): rotated rows; of a single row where they are
                         // not read again
  float* largest;        // (kv heads of a chunk, lanes)
  float* inverse;        // (kv heads of a chunk)
  std::uint8_t* output;  // a row of the chunk
};

inline std::int64_t scale_count(const Quantisation& task) {
  return task.shared == Shared::kTensor ? 1 : task.sequences * task.kv_heads;
}

inline SharedMemory take_shared(const Quantisation& task, Arena& arena) {
  SharedMemory memory;
  memory.blocks_before = arena.take<std::int64_t>(task.sequences + 1);
  memory.factors = arena.take<float>(task.incoherent ? task.width : 0);
  const bool in_two_passes = task.computes_scales() && task.shared != Shared::kBlock;
  memory.largest = arena.take<std::uint32_t>(in_two_passes ? scale_count(task) : 0);
  memory.next = arena.take<std::int64_t>(2);
  return memory;
}

inline void number_blocks(const Quantisation& task, const SharedMemory& shared) {
  shared.blocks_before[0] = 0;
  for (std::int64_t b = 0; b < task.sequences; ++b)
    shared.blocks_before[b + 1] = shared.blocks_before[b] + blocks_of(task, b);
}

inline Item item_at(const Quantisation& task, const Work& work, const SharedMemory& shared,
                    std::int64_t index) {
  Item item;
  const std::int64_t block = index / work.chunks;
  item.sequence = sequence_of_block(shared.blocks_before, task.sequences, block);
  item.block = block - shared.blocks_before[item.sequence];
  item.rows = rows_of(task, item.sequence);
  item.rows.first += item.block * kDescaleRows;
  item.rows.count = math::min(item.rows.count - item.block * kDescaleRows, kDescaleRows);
  item.head = index % work.chunks * work.chunk_heads;
  item.heads = math::min(work.chunk_heads, task.kv_heads - item.head);
  return item;
}

inline WorkerMemory take_worker(const Quantisation& task, const Work& work, Arena& arena) {
  WorkerMemory memory;
  const std::int64_t floats = work.chunk_floats(task);
  memory.stage = arena.take<float>(!task.incoherent     ? 0
                                   : stages_items(task) ? kDescaleRows * floats
                                                        : task.width);
  memory.largest = arena.take<float>(work.chunk_heads * Vec<float>::kLanes);
  memory.inverse = arena.take<float>(work.chunk_heads);
  memory.output = arena.take<std::uint8_t>(floats * problem::dtype_size(task.output.dtype));
  return memory;
}

}  // namespace tilewise::cpu::TILEWISE_TARGET
