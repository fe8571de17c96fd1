// What a Hopper kernel is given.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cuda/forward/sm90/kernel_table.h"
#include "cuda/tile/scheduler.h"
#include "cuda/tile/score_scaling.h"
#include "problem/sequence.h"

namespace tilewise::cuda::sm90 {

using tile::PackedSchedule;
using tile::Schedule;
using tile::TileCoord;

// What a head's and a sequence's number are multiplied with to be coordinates of a tensor's map, 0
// or 1: a dimension that is expanded (stride 0) has one element in the map.
struct CoordScale {
  std::int32_t head;
  std::int32_t batch;
};

// Of a tensor as the copy engine sees it.
struct TensorMap {
  CUtensorMap map;
  CoordScale steps;
};

// A sequence (problem/sequence.h) in 32 bits, read at once.
struct alignas(16) SequenceLengths {
  std::int32_t q_start;
  std::int32_t q_len;
  std::int32_t k_start;
  std::int32_t k_len;
};

// Where the blocks of a launch read what their sequences are, and how many tiles of queries come
// before each one: in the workspace, or in shared memory, where each block has listed them.
struct Sequences {
  const SequenceLengths* lengths;   // (B), nullptr where all have the same
  const std::int32_t* tile_starts;  // (B + 1), of packed queries
};
inline constexpr int kMaxListed = 28;  // in what shared memory has left
struct ListedSequences {
  SequenceLengths lengths[kMaxListed];
  std::int32_t tile_starts[kMaxListed + 1];
};

// From which the blocks of a launch take work. `launch` is the launch's own number once the first
// block has set `taken` to 0, and 0 again once all work is taken: what lies there before, also from
// the same launch of a graph that runs again, is never taken for it.
struct TileCounter {
  unsigned long long launch;
  unsigned taken;
};

// What it takes to find a tile of queries and to ask for its Q and K. Side by side: a line of
// constants comes from memory when it is first read, and the first tile of a block waits for each.
struct alignas(64) SchedulerParams {
  bool q_packed;
  bool top_left;
  bool open_end;             // behind a sequence's last key may follow another's
  std::int32_t window_left;  // as the problem's, at most tile::kMaxLength
  std::int32_t window_right;
  tile::FastDivmod group;
  tile::StaticRounds static_rounds;
  bool listed;                  // each block lists its sequences; else they are
  Sequences sequences;          // these, or
  SequenceLengths whole;        // this one
  tile::FastSchedule schedule;  // of dense queries
  PackedSchedule packed;        // of packed ones, but for its tile_starts
  CoordScale q_coords, k_coords;

  TILEWISE_INLINE PackedSchedule packed_by(const std::int32_t* tile_starts) const {
    return {tile_starts, packed.heads, packed.batch, packed.longest_first};
  }
  TILEWISE_INLINE std::int32_t count(const Sequences& of) const {
    return q_packed ? packed_by(of.tile_starts).count() : schedule.count();
  }
  TILEWISE_INLINE TileCoord tile_coord(std::int32_t index, const Sequences& of) const {
    return q_packed ? packed_by(of.tile_starts).tile_coord(index) : schedule.tile_coord(index);
  }
  TILEWISE_INLINE SequenceLengths lengths(std::int32_t batch, const Sequences& of) const {
    return of.lengths != nullptr ? of.lengths[batch] : whole;
  }
};

struct Parameters {
  CUtensorMap q, k, v;
  CUtensorMap out;  // of kernels with carriers
  SchedulerParams scheduler;
  CoordScale v_coords;
  CoordScale out_coords;
  problem::Problem problem;
  TileCounter* counter;       // nullptr: static_tile() decides
  unsigned long long launch;  // number of this launch
  unsigned long long*
      flags;         // (work, 16 rows): lists of what the non_finite_pass path must compute
  float scale_log2;  // what a scale_log2 of a score is worth as an exponent of 2
  tile::ScoreScaling scaling;  // of score_mod kernels
  float ln2;                   // what a scale_log2 of an exponent is worth in lse: log(2)
  std::int32_t out_bytes;      // of a number of out
  std::int64_t out_step;       // bytes of four rows of out
  std::int64_t lse_step;       // bytes of eight rows of lse
  std::uint32_t zero;          // always, but the compiler does not know
  bool vector_stores;          // out takes 16 bytes at a time,
  bool tma_stores;             // or boxes of its map
};

// A compiled kernel: a row of the table and a type. Each is instantiated in a source file that
// CMakeLists.txt makes.
template <int kRow, bool kFp16>
struct ForwardKernel {
  static cudaError_t load();
  static cudaError_t start(const Parameters& parameters, int blocks, cudaStream_t stream);
};

// Of the kernel below, on the current device.
cudaError_t load_support();

// Fills the workspace's sequences.
cudaError_t start_prepare(const Parameters& parameters, int q_tile, cudaStream_t stream);

}  // namespace tilewise::cuda::sm90
