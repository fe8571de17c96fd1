// The work of decoding, and how blocks divide it.
//
// A segment is a tile of rows of queries of one kv head of one sequence: the rows of all query
// heads of the group (GQA), head after head, that share the head's K and V. Its keys are cut into
// tiles, and tiles into units. The units of all segments are numbered one after the other, and
// every block takes an equal share of the numbers, whatever the lengths of the sequences. A share
// may end within a segment, so a segment consists of the parts that blocks compute of it (Flash-
// Decoding, with shares in place of splits). With fixed parts, every unit is a part: the bits of a
// row do not depend on what else is in the batch.
#pragma once

#include "cuda/decode/parameters.h"
#include "cuda/host/sequences.cuh"
#include "cuda/tile/bands.h"
#include "cuda/tile/block_scan.cuh"
#include "cuda/tile/window_band.h"
#include "math/integer.h"

namespace tilewise::cuda::decode {

struct Segment {
  Sequence sequence;
  tile::WindowBand band;
  tile::Range keys;       // that some row of the sequence sees
  tile::Range full;       // that all of them see
  std::int32_t segments;  // of the sequence
  std::int32_t index;     // among them
  std::int32_t kv_head;
  std::int32_t first_row;  // among the rows of the sequence and kv head
  std::int32_t rows;       // of the segment
  std::int32_t tiles;      // of keys, at least 1
  std::int32_t units;
  std::int64_t first_unit;

  __device__ __forceinline__ std::int64_t end_unit() const { return first_unit + units; }
  __device__ __forceinline__ std::int32_t first_tile(std::int32_t block_keys) const {
    return keys.begin / block_keys;
  }
};

// Fills in what the segments of a sequence have in common.
__device__ __forceinline__ void describe_sequence(const Parameters& parameters,
                                                  const Sequence& sequence, Segment& segment) {
  const Problem& problem = parameters.problem;
  const auto q_len = static_cast<std::int32_t>(sequence.q_len);
  segment.sequence = sequence;
  segment.band = tile::window_band(static_cast<std::int32_t>(sequence.k_len),
                                   static_cast<std::int32_t>(sequence.diagonal),
                                   parameters.window_left, parameters.window_right);
  segment.keys = {segment.band.begin(0), segment.band.end(q_len - 1)};
  if (segment.keys.begin >= segment.keys.end) segment.keys = {0, 0};
  segment.full = {segment.band.begin(q_len - 1), segment.band.end(0)};
  const std::int32_t row_tiles =
      math::ceil_div(static_cast<std::int32_t>(problem.group) * q_len, parameters.q_tile);
  segment.segments = static_cast<std::int32_t>(problem.kv_heads) * row_tiles;
  segment.tiles = math::max(math::ceil_div(segment.keys.end, parameters.block_keys) -
                                segment.keys.begin / parameters.block_keys,
                            1);
  segment.units = math::ceil_div(segment.tiles, parameters.unit_tiles);
}

// Fills in segment `index` of the sequence.
__device__ __forceinline__ void set_segment(const Parameters& parameters, std::int32_t index,
                                            std::int64_t first_unit, Segment& segment) {
  const std::int32_t rows = static_cast<std::int32_t>(parameters.problem.group) *
                            static_cast<std::int32_t>(segment.sequence.q_len);
  const std::int32_t row_tiles = math::ceil_div(rows, parameters.q_tile);
  segment.index = index;
  segment.kv_head = index / row_tiles;
  segment.first_row = index % row_tiles * parameters.q_tile;
  segment.rows = math::min(rows - segment.first_row, parameters.q_tile);
  segment.first_unit = first_unit;
}

// Goes on to the next segment. There is one.
__device__ __forceinline__ void advance(const Parameters& parameters, Segment& segment) {
  const std::int64_t first_unit = segment.end_unit();
  std::int32_t index = segment.index + 1;
  while (index >= segment.segments) {
    describe_sequence(parameters,
                      sequence_at(parameters.problem, parameters.table, segment.sequence.batch + 1),
                      segment);
    index = 0;
  }
  set_segment(parameters, index, first_unit, segment);
}

// What the threads of a block exchange while they look for a segment.
template <int kThreads>
struct SearchBuffers {
  std::int64_t warps[kThreads / 32];
};

// All kThreads threads of a block call the functions.
template <int kThreads>
class WorkList {
 public:
  __device__ WorkList(const Parameters& parameters, SearchBuffers<kThreads>& buffers)
      : parameters_(parameters), buffers_(buffers) {
    if (parameters.problem.batch == 0) return;
    units_ = parameters.uniform ? parameters.problem.batch * units_of(0)
                                : visit([](std::int64_t, std::int64_t, std::int64_t) {});
  }

  // Returns the number of units of all segments.
  __device__ std::int64_t units() const { return units_; }

  // Returns the segment that contains a unit.
  __device__ void find(std::int64_t unit, Segment& segment /* shared */) {
    if (parameters_.uniform) {
      const std::int64_t own = units_of(0);
      if (threadIdx.x == 0) set(unit / own, unit / own * own, unit, segment);
    } else {
      visit([&](std::int64_t batch, std::int64_t begin, std::int64_t end) {
        if (begin <= unit && unit < end) set(batch, begin, unit, segment);
      });
    }
    __syncthreads();
  }

 private:
  // The units of sequence `batch`, a segment of which is described.
  __device__ __forceinline__ std::int64_t units_of(std::int64_t batch) const {
    Segment segment;
    describe_sequence(parameters_, sequence_at(parameters_.problem, parameters_.table, batch),
                      segment);
    return std::int64_t{segment.segments} * segment.units;
  }

  // Calls visit(sequence, first unit, end of its units) for each sequence, one thread for each.
  // Threads that are left over visit one without units. Returns the number of all units.
  template <class Visit>
  __device__ std::int64_t visit(const Visit& visit) {
    std::int64_t carry = 0;
    const std::int64_t batches = parameters_.problem.batch;
    for (std::int64_t first = 0; first < batches; first += kThreads) {
      const std::int64_t batch = first + threadIdx.x;
      const std::int64_t own = batch < batches ? units_of(batch) : 0;
      const std::int64_t end = block_scan<kThreads / 32>(
          own, buffers_.warps, carry, [](std::int64_t a, std::int64_t b) { return a + b; });
      visit(batch, end - own, end);
    }
    return carry;
  }

  __device__ __forceinline__ void set(std::int64_t batch, std::int64_t begin, std::int64_t unit,
                                      Segment& segment) {
    describe_sequence(parameters_, sequence_at(parameters_.problem, parameters_.table, batch),
                      segment);
    const auto index = static_cast<std::int32_t>((unit - begin) / segment.units);
    set_segment(parameters_, index, begin + std::int64_t{index} * segment.units, segment);
  }

  const Parameters& parameters_;
  SearchBuffers<kThreads>& buffers_;
  std::int64_t units_ = 0;
};

// The shares of the blocks.
struct Shares {
  std::int64_t units;
  std::int64_t blocks;  // that have a share

  __device__ __forceinline__ Shares(const Parameters& parameters, std::int64_t all)
      : units(all),
        blocks(math::max(math::min(all / parameters.least_units, std::int64_t{parameters.blocks}),
                         1)) {}

  // The first unit of a block; that of block `blocks` is the end.
  __device__ __forceinline__ std::int64_t begin(std::int64_t block) const {
    return block * units / blocks;
  }
  // The block whose share contains a unit.
  __device__ __forceinline__ std::int64_t block_of(std::int64_t unit) const {
    return ((unit + 1) * blocks - 1) / units;
  }
};

// Where the state of a part lies that begins with unit `begin` of a segment. A block has at most
// two parts of segments that are not whole: it begins with the rest of one and ends with the
// beginning of another.
__device__ __forceinline__ std::int64_t part_slot(const Parameters& parameters,
                                                  const Segment& segment, std::int64_t begin,
                                                  std::int64_t block) {
  if (parameters.fixed_parts) return begin;
  return 2 * block + (begin == segment.first_unit ? 1 : 0);
}

// The parts of a segment of more than one.
struct Parts {
  std::int64_t first_slot;
  std::int64_t second_slot;
  std::int64_t step;  // from the second one on
  std::int32_t count;

  __device__ __forceinline__ std::int64_t slot(std::int32_t part) const {
    return part == 0 ? first_slot : second_slot + (part - 1) * step;
  }
};

__device__ __forceinline__ Parts parts_of(const Parameters& parameters, const Shares& shares,
                                          const Segment& segment) {
  const std::int64_t first = segment.first_unit;
  if (parameters.fixed_parts) return {first, first + 1, 1, segment.units};
  const std::int64_t block = shares.block_of(first);
  const std::int64_t last = shares.block_of(segment.end_unit() - 1);
  return {2 * block + 1, 2 * (block + 1), 2, static_cast<std::int32_t>(last - block + 1)};
}

}  // namespace tilewise::cuda::decode
