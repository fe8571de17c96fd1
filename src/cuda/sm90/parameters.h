// What a Hopper kernel is given.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cuda/sm90/config.h"
#include "cuda/tile/scaling.h"
#include "cuda/tile/schedule.h"
#include "problem/sequence.h"

namespace tilewise::cuda::sm90 {

using tile::PackedSchedule;
using tile::Schedule;
using tile::Work;

// What a head's and a sequence's number are multiplied with to be coordinates of a tensor's map, 0
// or 1: a dimension that is expanded (stride 0) has one element in the map.
struct Steps {
  std::int32_t head;
  std::int32_t batch;
};

// Of a tensor as the copy engine sees it.
struct TensorMap {
  CUtensorMap map;
  Steps steps;
};

// A sequence (problem/sequence.h) in 32 bits, read at once.
struct alignas(16) Lengths {
  std::int32_t q_start;
  std::int32_t q_len;
  std::int32_t k_start;
  std::int32_t k_len;
};

// Where the blocks of a launch read what their sequences are, and how many tiles of queries come
// before each one: in the workspace, or in shared memory, where each block has listed them.
struct Sequences {
  const Lengths* lengths;           // (B), nullptr where all have the same
  const std::int32_t* tile_starts;  // (B + 1), of packed queries
};
inline constexpr int kMostListed = 28;  // in what shared memory has left
struct SequenceList {
  Lengths lengths[kMostListed];
  std::int32_t tile_starts[kMostListed + 1];
};

// From which the blocks of a launch take work. `launch` is the launch's own number once the first
// block has set `taken` to 0, and 0 again once all work is taken: what lies there before, also from
// the same launch of a graph that runs again, is never taken for it.
struct Counter {
  unsigned long long launch;
  unsigned taken;
};

// What it takes to find a tile of queries and to ask for its Q and K. Side by side: a line of
// constants comes from memory when it is first read, and the first tile of a block waits for each.
struct alignas(64) Finding {
  bool q_packed;
  bool top_left;
  bool open_end;             // behind a sequence's last key may follow another's
  std::int32_t window_left;  // as the problem's, at most tile::kLongest
  std::int32_t window_right;
  tile::Divisor group;
  tile::Dealing dealing;
  bool listed;                      // each block lists its sequences; else they are
  Sequences sequences;              // these, or
  Lengths whole;                    // this one
  tile::PreparedSchedule schedule;  // of dense queries
  PackedSchedule packed;            // of packed ones, but for its tile_starts
  Steps q_steps, k_steps;

  TILEWISE_INLINE PackedSchedule packed_by(const std::int32_t* tile_starts) const {
    return {tile_starts, packed.heads, packed.batch, packed.longest_first};
  }
  TILEWISE_INLINE std::int32_t count(const Sequences& of) const {
    return q_packed ? packed_by(of.tile_starts).count() : schedule.count();
  }
  TILEWISE_INLINE Work work(std::int32_t index, const Sequences& of) const {
    return q_packed ? packed_by(of.tile_starts).work(index) : schedule.work(index);
  }
  TILEWISE_INLINE Lengths lengths(std::int32_t batch, const Sequences& of) const {
    return of.lengths != nullptr ? of.lengths[batch] : whole;
  }
};

struct Parameters {
  CUtensorMap q, k, v;
  CUtensorMap out;  // of kernels with carriers
  Finding finding;
  Steps v_steps;
  Steps out_steps;
  problem::Problem problem;
  Counter* counter;           // nullptr: static_index() decides
  unsigned long long launch;  // number of this launch
  unsigned long long* marks;  // (work, 16 rows): lists of what the careful path must compute
  float unit;                 // what a unit of a score is worth as an exponent of 2
  tile::Scaling scaling;      // of general kernels
  float lse_unit;             // what a unit of an exponent is worth in lse: log(2)
  std::int32_t out_bytes;     // of a number of out
  std::int64_t out_step;      // bytes of four rows of out
  std::int64_t lse_step;      // bytes of eight rows of lse
  std::uint32_t zero;         // always, but the compiler does not know
  bool wide_stores;           // out takes 16 bytes at a time,
  bool mapped_stores;         // or boxes of its map
};

using Start = cudaError_t (*)(const Parameters& parameters, int blocks, cudaStream_t stream);
using Load = cudaError_t (*)();

// A compiled kernel.
struct Instance {
  KernelConfig config;
  Load load;
  Start start;
};

// Of the kernel below, on the current device.
cudaError_t load_support();

// Fills the workspace's sequences.
cudaError_t start_prepare(const Parameters& parameters, int q_tile, cudaStream_t stream);

}  // namespace tilewise::cuda::sm90
