// The arguments of a Hopper forward kernel.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cuda/forward/sm90/kernel_table.h"
#include "cuda/host/tensor_map.h"
#include "cuda/tile/block_mask.h"
#include "cuda/tile/scheduler.h"
#include "cuda/tile/score_scaling.h"
#include "problem/sequence.h"

namespace tilewise::cuda::sm90 {

using tile::PackedSchedule;
using tile::Schedule;
using tile::TileCoord;

// A sequence (problem/sequence.h) in 32 bits, read in one load.
struct alignas(16) SequenceLengths {
  std::int32_t q_start;
  std::int32_t q_len;
  std::int32_t k_start;
  std::int32_t k_len;
};

// The sequences of a launch: in the workspace, or in the shared memory of each block, which lists
// them itself (sequences.cuh).
struct Sequences {
  const SequenceLengths* lengths;   // (B), nullptr where all sequences have the same
  const std::int32_t* tile_starts;  // (B + 1), query tiles before each sequence of `packed`
};
inline constexpr int kMaxListed = 24;  // what shared memory has left
struct ListedSequences {
  SequenceLengths lengths[kMaxListed];
  std::int32_t tile_starts[kMaxListed + 1];
};

// The work queue of a dynamic schedule. `launch` holds the number of the launch from the moment
// when the first block has set `taken` to 0 until all tiles are taken, and 0 afterwards: no earlier
// content of this memory, also of another replay of the same graph, is mistaken for it.
struct TileCounter {
  unsigned long long launch;
  unsigned taken;
};

// The parameters for finding a query tile and loading its Q and K. They lie side by side, because a
// line of constants comes from memory when it is first read, and the first tile of a block waits
// for each.
struct alignas(64) SchedulerParams {
  bool varlen_q;  // of the problem: the tiles are those of `packed`
  bool top_left;
  bool open_end;             // the keys of another sequence may follow a sequence's last one
  std::int32_t window_left;  // the problem's, at most tile::kMaxLength
  std::int32_t window_right;
  tile::FastDivmod group;  // query heads that share a kv head (GQA)
  tile::StaticRounds static_rounds;
  bool listed;                  // each block lists the sequences itself
  Sequences sequences;          // else they are these,
  SequenceLengths whole;        // or all are this one
  tile::FastSchedule schedule;  // of dense queries of one length
  PackedSchedule packed;        // of queries of different lengths, without tile_starts
  CoordScale q_coords, k_coords;
  const problem::Sequence* parts;  // (B), with the diagonals of parts; nullptr: they are whole

  // Whether tiles are found by what a kernel before this one has written, or by the caller's lists.
  TILEWISE_INLINE bool reads_memory() const {
    return listed || sequences.lengths != nullptr || parts != nullptr;
  }
  TILEWISE_INLINE PackedSchedule packed_by(const std::int32_t* tile_starts) const {
    return {tile_starts, packed.heads, packed.batch, packed.longest_first};
  }
  TILEWISE_INLINE std::int32_t count(const Sequences& of) const {
    return varlen_q ? packed_by(of.tile_starts).count() : schedule.count();
  }
  TILEWISE_INLINE TileCoord tile_coord(std::int32_t index, const Sequences& of) const {
    return varlen_q ? packed_by(of.tile_starts).tile_coord(index) : schedule.tile_coord(index);
  }
  TILEWISE_INLINE SequenceLengths lengths(std::int32_t batch, const Sequences& of) const {
    return of.lengths != nullptr ? of.lengths[batch] : whole;
  }
  TILEWISE_INLINE std::int32_t diagonal(std::int32_t batch, const SequenceLengths& of) const {
    if (parts != nullptr) return static_cast<std::int32_t>(parts[batch].diagonal);
    return top_left ? 0 : of.k_len - of.q_len;
  }
};

// The work that a block of a fast kernel leaves to the block of the careful kernel after it
// (forward.cuh): the head of its list of tiles (listed_tiles.cuh), 0 if it is empty, and the first
// round that is left, or -1.
struct Handover {
  unsigned long long listed;
  std::int32_t next_round;
};

struct Parameters {
  CUtensorMap q, k, v;
  CUtensorMap out;  // of kernels with epilogue warps
  SchedulerParams scheduler;
  CoordScale v_coords;
  CoordScale out_coords;
  problem::Problem problem;
  TileCounter* counter;        // of a dynamic schedule; nullptr: the schedule is static
  unsigned long long launch;   // number of this launch
  tile::BlockMask block_mask;  // of kernels that have one
  unsigned long long* links;   // (query tiles): lists of query tiles (listed_tiles.cuh)
  Handover* handovers;         // (blocks), of kernels with a careful kernel
  float scale_log2;            // exponent of 2 that a score of 1 stands for
  tile::ScoreScaling scaling;  // of kernels with a score mod
  float ln2;                   // log(2)
  std::int32_t out_bytes;      // of an element of out
  std::int64_t out_step;       // bytes of four rows of out
  std::int64_t lse_step;       // bytes of eight rows of lse
  std::uint32_t zero;          // 0, which the compiler does not know
  bool vector_stores;          // out takes 16 bytes at a time,
  bool tma_stores;             // or boxes of its tensor map
};

// A compiled kernel: a row of the table and a type. Each is instantiated in a source file that
// CMakeLists.txt makes.
template <int kRow, bool kFp16>
struct ForwardKernel {
  static cudaError_t load();
  static cudaError_t start(const Parameters& parameters, int blocks, cudaStream_t stream);
};

// The same for fp8 (fp8/kernel_table.h).
template <int kRow, bool kE5M2>
struct Fp8ForwardKernel {
  static cudaError_t load();
  static cudaError_t start(const Parameters& parameters, int blocks, cudaStream_t stream);
};

// Loads the kernel of start_prepare() on the current device.
cudaError_t load_support();

// Fills the workspace's sequences.
cudaError_t start_prepare(const Parameters& parameters, int q_tile, cudaStream_t stream);

}  // namespace tilewise::cuda::sm90
