// Finds the segments of a share (segment.h), by all threads of a block.
#pragma once

#include "cuda/decode/segment.h"
#include "cuda/host/sequences.cuh"
#include "cuda/tile/block_scan.cuh"
#include "math/integer.h"

namespace tilewise::cuda::decode {

// Goes on to the next segment. There is one.
__device__ __forceinline__ void advance(const Parameters& parameters, std::int32_t member,
                                        Segment& segment) {
  const std::int32_t first_unit = segment.end_unit();
  std::int32_t index = segment.index + 1;
  while (index >= segment.segments) {
    describe_sequence(parameters,
                      sequence_at(parameters.problem, parameters.table, segment.sequence.batch + 1),
                      segment);
    index = 0;
  }
  set_segment(parameters, index, member, first_unit, segment);
}

// The memory in which the threads of a block exchange numbers while they look for a segment.
template <int kThreads>
struct SearchBuffers {
  std::int64_t warps[kThreads / 32];
};

// All kThreads threads of a block call the functions.
template <int kThreads>
class WorkList {
 public:
  __device__ __forceinline__ WorkList(const Parameters& parameters,
                                      SearchBuffers<kThreads>& buffers)
      : parameters_(parameters), buffers_(buffers), units_(parameters.sequence_units) {
    if (parameters.uniform) {
      units_ = static_cast<std::int32_t>(parameters.problem.batch) * parameters.sequence_units;
    } else {
      units_ = visit([](std::int64_t, std::int32_t, std::int32_t) {});
    }
  }

  // Returns the number of units of all segments.
  __device__ __forceinline__ std::int32_t units() const { return units_; }

  // Finds the segment that contains a unit.
  __device__ __forceinline__ void find(std::int32_t unit, std::int32_t member,
                                       Segment& segment /* shared */) {
    if (parameters_.uniform) {
      const std::int32_t batch = unit / parameters_.sequence_units;
      if (threadIdx.x == 0) set(batch, batch * parameters_.sequence_units, unit, member, segment);
    } else {
      visit([&](std::int64_t batch, std::int32_t begin, std::int32_t end) {
        if (begin <= unit && unit < end) set(batch, begin, unit, member, segment);
      });
    }
    __syncthreads();
  }

 private:
  // Calls visit(sequence, first unit, end of its units) for each sequence, one thread for each.
  // Threads that are left over visit one without units. Returns the number of all units.
  template <class Visit>
  __device__ __forceinline__ std::int32_t visit(const Visit& visit) {
    std::int64_t carry = 0;
    const std::int64_t batches = parameters_.problem.batch;
    for (std::int64_t first = 0; first < batches; first += kThreads) {
      const std::int64_t batch = first + threadIdx.x;
      std::int32_t own = 0;
      if (batch < batches) {
        Segment segment;
        describe_sequence(parameters_, sequence_at(parameters_.problem, parameters_.table, batch),
                          segment);
        own = segment.segments * segment.units;
      }
      const auto end = static_cast<std::int32_t>(block_scan<kThreads / 32>(
          own, buffers_.warps, carry, [](std::int64_t a, std::int64_t b) { return a + b; }));
      visit(batch, end - own, end);
    }
    return static_cast<std::int32_t>(carry);
  }

  __device__ __forceinline__ void set(std::int64_t batch, std::int32_t begin, std::int32_t unit,
                                      std::int32_t member, Segment& segment) {
    describe_sequence(parameters_, sequence_at(parameters_.problem, parameters_.table, batch),
                      segment);
    const std::int32_t index = (unit - begin) / segment.units;
    set_segment(parameters_, index, member, begin + index * segment.units, segment);
  }

  const Parameters& parameters_;
  SearchBuffers<kThreads>& buffers_;
  std::int32_t units_;
};

}  // namespace tilewise::cuda::decode
