// The slow path of D 256 for rows that the fast one could not compute: a block's flagged rows,
// recomputed in fp64 like cuda_reference once all others are done. Where no row is flagged, nothing
// is written and nothing starts.
#pragma once

#include "cuda/forward/sm90/parameters.h"
#include "cuda/host/sequences.cuh"
#include "cuda/oracle/reference_row.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/sm90/named_barriers.h"
#include "cuda/tile/fragment.h"
#include "math/integer.h"

namespace tilewise::cuda::sm90 {

// Flags the 16 rows of a warp of a query tile. The flagged warps of a block are a list: `last` is
// the number of the last one, and parameters.links holds for each the number of the one before it.
// Numbers begin with 1; 0 ends the list.
__device__ __forceinline__ void flag_rows(const Parameters& parameters, std::int64_t warp,
                                          unsigned long long& last) {
  const unsigned long long own = static_cast<unsigned long long>(warp) + 1;
  parameters.links[warp] = atomicExch(&last, own);
}

// A consumer warpgroup that computes rows.
struct RowTeam {
  RowMemory& memory;
  int warpgroup;

  __device__ int thread() const { return static_cast<int>(threadIdx.x) % kRowThreads; }
  __device__ void sync() const {
    ptx::named_barrier_sync(barrier_of(NamedBarrier::kRecomputeTeam, warpgroup), kRowThreads);
  }
};

// Recomputes all rows of a list; the warpgroups take its entries in turns. NOTE: not inlined, so
// that the registers it needs cost the loops before it nothing.
inline __device__ __noinline__ void recompute_flagged_rows(const Parameters& parameters,
                                                           Sequences sequences, int q_tile,
                                                           int warpgroups, unsigned long long last,
                                                           RowMemory* memory, int warpgroup) {
  const RowTeam team = {*memory, warpgroup};
  const Problem& problem = parameters.problem;
  const std::int64_t warps = q_tile / tile::kWarpRows;  // of a tile
  for (int turn = 0; last != 0; turn = (turn + 1) % warpgroups) {
    const std::int64_t warp = static_cast<std::int64_t>(last) - 1;
    last = parameters.links[warp];
    if (turn != warpgroup) continue;
    const std::int32_t index = static_cast<std::int32_t>(warp / warps);
    const TileCoord coord = parameters.scheduler.tile_coord(index, sequences);
    const SequenceLengths lengths = parameters.scheduler.lengths(coord.batch, sequences);
    const Sequence sequence = {coord.batch,   lengths.q_start,
                               lengths.q_len, lengths.k_start,
                               lengths.k_len, problem.top_left ? 0 : lengths.k_len - lengths.q_len};
    const std::int64_t row = std::int64_t{coord.q_tile} * q_tile + warp % warps * tile::kWarpRows;
    const std::int64_t end = math::min(row + tile::kWarpRows, sequence.q_len);
    for (std::int64_t r = row; r < end; ++r) {
      compute_row(Row{problem, sequence, coord.head, r}, team);
    }
  }
}

}  // namespace tilewise::cuda::sm90
