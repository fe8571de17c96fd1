// The non_finite_pass path: a block's marked rows, computed again by the reference's arithmetic
// once everything else is done. Nothing is written and nothing started where no row is marked.
#pragma once

#include "cuda/forward/sm90/parameters.h"
#include "cuda/host/sequences.cuh"
#include "cuda/oracle/reference_row.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/tile/fragment.h"
#include "math/integer.h"

namespace tilewise::cuda::sm90 {

inline constexpr std::uint32_t kRecomputeBarrier =
    7;  // named barriers: all consumers, then each one

// A block's marks are a list: `last` is the number of the last one, each marked warp of a tile has
// the number of the mark before its own in parameters.marks. Numbers begin with 1, 0 is none.
__device__ __forceinline__ void flag_rows(const Parameters& parameters, std::int64_t warp,
                                          unsigned long long& last) {
  const unsigned long long own = static_cast<unsigned long long>(warp) + 1;
  parameters.flags[warp] = atomicExch(&last, own);
}

// A consumer warpgroup that computes rows.
struct RowTeam {
  RowMemory& memory;
  int warpgroup;

  __device__ int thread() const { return static_cast<int>(threadIdx.x) % kRowThreads; }
  __device__ void sync() const {
    ptx::named_barrier_sync(kRecomputeBarrier + 1 + warpgroup, kRowThreads);
  }
};

// The rows of every mark of a list, the warpgroups in turns. NOTE: a function of its own, so that
// what it needs is nothing to the loops before it.
inline __device__ __noinline__ void recompute_flagged_rows(const Parameters& parameters,
                                                           Sequences sequences, int q_tile,
                                                           int warpgroups, unsigned long long last,
                                                           RowMemory* memory, int warpgroup) {
  const RowTeam team = {*memory, warpgroup};
  const Problem& problem = parameters.problem;
  const std::int64_t warps = q_tile / tile::kWarpRows;  // of a tile
  for (int round = 0; last != 0; round = (round + 1) % warpgroups) {
    const std::int64_t warp = static_cast<std::int64_t>(last) - 1;
    last = parameters.flags[warp];
    if (round != warpgroup) continue;
    const std::int32_t index = static_cast<std::int32_t>(warp / warps);
    const TileCoord work = parameters.scheduler.tile_coord(index, sequences);
    const SequenceLengths lengths = parameters.scheduler.lengths(work.batch, sequences);
    const Sequence sequence = {work.batch,    lengths.q_start,
                               lengths.q_len, lengths.k_start,
                               lengths.k_len, problem.top_left ? 0 : lengths.k_len - lengths.q_len};
    const std::int64_t row = std::int64_t{work.q_tile} * q_tile + warp % warps * tile::kWarpRows;
    const std::int64_t end = math::min(row + tile::kWarpRows, sequence.q_len);
    for (std::int64_t r = row; r < end; ++r) {
      compute_row({problem, sequence, work.head, r}, team);
    }
  }
}

}  // namespace tilewise::cuda::sm90
