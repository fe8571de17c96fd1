// Finds out whether a non-finite element of Q or dO may have reached a gradient that must not see
// it. A masked pair has P = 0 and dS = 0, but 0 * NaN is NaN: only tiles of queries that an edge
// cuts have such pairs. A score of -inf masks too, even if the LSE of its row is NaN: an infinity
// in Q makes such scores, in any tile. Gradients that are not finite for another reason are right.
#pragma once

#include "cuda/backward/key_tile.cuh"
#include "cuda/sm80/shared.cuh"
#include "cuda/sm80/work_tile.cuh"
#include "cuda/tile/bands.h"
#include "cuda/tile/non_finite.cuh"

namespace tilewise::cuda::backward {

// Returns whether this thread, of `threads` that share the work, has found a non-finite element in
// the rows of a range; with `infinite`, an infinity.
template <bool kFp16>
__device__ __forceinline__ bool hold_non_finite(const cuda::sm80::RowsOf<std::uint16_t>& rows,
                                                const tile::Range& range, int thread, int threads,
                                                bool infinite = false) {
  constexpr int kChunk = 8;
  const bool wide = rows.aligned16 && rows.columns % kChunk == 0;
  const std::int32_t width = wide ? rows.columns / kChunk : rows.columns;
  const std::int32_t count = (math::min(range.end, rows.count) - range.begin) * width;
  bool found = false;
#pragma unroll 1
  for (std::int32_t i = thread; i < count; i += threads) {
    const std::uint16_t* const from = rows.first + (range.begin + i / width) * rows.stride;
    uint4 chunk = make_uint4(0, 0, 0, 0);
    if (wide) {
      chunk = *reinterpret_cast<const uint4*>(from + i % width * kChunk);
    } else {
      chunk.x = from[i % width];
    }
    found |= infinite ? tile::has_infinity<kFp16>(chunk) : tile::zero_non_finite<kFp16>(chunk);
  }
  return found;
}

// As above, for elements of fp32.
__device__ __forceinline__ bool hold_non_finite(const cuda::sm80::RowsOf<float>& rows,
                                                const tile::Range& range, int thread, int threads,
                                                bool infinite = false) {
  const std::int32_t count = (math::min(range.end, rows.count) - range.begin) * rows.columns;
  bool found = false;
#pragma unroll 1
  for (std::int32_t i = thread; i < count; i += threads) {
    const float x = rows.first[(range.begin + i / rows.columns) * rows.stride + i % rows.columns];
    found |= infinite ? fabsf(x) == HUGE_VALF : tile::is_non_finite(x);
  }
  return found;
}

// Calls visit(q_tile, full) for the tiles of queries that see a tile of keys, of all query heads of
// the group. The first warp calls begin_head(head), which sets the rows and the mask of a head. All
// threads.
template <class Mask, class BeginHead, class Visit>
__device__ __forceinline__ void for_each_query_tile(const Problem& problem, const KeyTile& keys,
                                                    const Mask& mask, const BeginHead& begin_head,
                                                    const Visit& visit) {
  const std::int32_t group = static_cast<std::int32_t>(problem.group);
#pragma unroll 1
  for (std::int32_t i = 0; i < group; ++i) {
    __syncthreads();  // no warp reads the last head's rows or table any more
    if (threadIdx.x < 32) begin_head(keys.kv_head * group + i);
    __syncthreads();
#pragma unroll 1
    for (std::int32_t q_tile = mask.first_tile(); q_tile >= 0; q_tile = mask.next_tile(q_tile))
      visit(q_tile, mask.tile_class(q_tile) == tile::kFull);
  }
}

// Threads that share work: `count` of them, of which this is number `index`.
struct ThreadShare {
  int index;
  int count;
};

// Returns whether this thread finds a non-finite element of Q or dO in some queries of a head or,
// if the queries see all keys of the block (full), an infinity in Q.
template <bool kFp16>
__device__ __forceinline__ bool hide_non_finite(const Problem& problem, const Sequence& sequence,
                                                std::int32_t head, const tile::Range& queries,
                                                bool full, const ThreadShare& threads) {
  const std::int64_t batch = problem.q_packed ? 0 : sequence.batch;
  // Rows after the end of the sequence have been loaded as well.
  const std::int64_t rows = problem.q_rows - (problem.q_packed ? sequence.q_start : 0);
  const bool found = hold_non_finite<kFp16>(
      cuda::sm80::rows_of<std::uint16_t>(problem.q, batch, head, sequence.q_start, rows,
                                         problem.head_dim, true),
      queries, threads.index, threads.count, full);
  if (full) return found;
  return hold_non_finite<kFp16>(
             cuda::sm80::rows_of<std::uint16_t>(problem.dout, batch, head, sequence.q_start, rows,
                                                problem.value_dim, true),
             queries, threads.index, threads.count) ||
         found;
}

}  // namespace tilewise::cuda::backward
