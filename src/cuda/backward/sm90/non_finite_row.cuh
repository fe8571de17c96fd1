// The contribution of the non-finite elements of dO to dV, row by row.
#pragma once

#include "cuda/backward/parameters.h"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/arithmetic.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/non_finite.cuh"
#include "cuda/tile/swizzle.h"

namespace tilewise::cuda::backward::sm90 {

// A row of dO in global memory.
struct DoutRow {
  const std::uint16_t* data;
  std::int64_t columns;
};

// `query` is counted from the sequence's first one.
__device__ __forceinline__ DoutRow dout_row(const Problem& problem, const Sequence& sequence,
                                            std::int32_t head, std::int32_t query) {
  const std::int64_t batch = problem.q_packed ? 0 : sequence.batch;
  return {static_cast<const std::uint16_t*>(problem.dout.data) +
              problem.dout.offset(batch, head, sequence.q_start + query),
          problem.value_dim};
}

// Adds P^T dO to dv for the non-finite elements of the row. P^T lies in shared memory in panels of
// 64 queries; `panel` is the one with the row's column. warp_row: the first of the warp's 16 keys
// there
template <bool kFp16, int kCount>
__device__ void add_non_finite_row(const DoutRow& dout, const unsigned char* panel, int warp_row,
                                   int column_of_panel, float (&dv)[kCount]) {
  const int lane = static_cast<int>(ptx::opaque(threadIdx.x) % 32);
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    const int key = warp_row + tile::lane_row(lane, tile::register_row(r));
    const int column = tile::register_column(r) + tile::lane_column(lane);
    const std::uint32_t weight =
        *reinterpret_cast<const std::uint16_t*>(panel + tile::swizzled(key, column_of_panel * 2));
    if (weight == 0 || column >= dout.columns) continue;
    const std::uint32_t value = dout.data[column];
    if (tile::is_non_finite16<kFp16>(value))
      dv[r] += ptx::unpack<kFp16>(weight, 0) * ptx::unpack<kFp16>(value, 0);
  }
}

}  // namespace tilewise::cuda::backward::sm90
