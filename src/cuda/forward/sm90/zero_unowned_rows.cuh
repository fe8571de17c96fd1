// Zeroes the rows of packed queries that belong to no sequence, and those of dense ones after
// seqused_q: out = 0, lse = -inf. The epilogue warps do it after their last tile: a kernel of its
// own would cost more than there usually is to fill.
#pragma once

#include "cuda/forward/sm90/parameters.h"
#include "math/config.h"

namespace tilewise::cuda::sm90 {

__device__ __forceinline__ void zero_row(const problem::Problem& problem, std::int32_t batch,
                                         std::int32_t row) {
  const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x) % 32;
  for (std::int32_t head = 0; head < problem.heads; ++head) {
    const std::int64_t offset = problem.out.offset(batch, head, row);
    for (std::int32_t column = lane; column < problem.value_dim; column += 32) {
      if (problem.out.dtype == TILEWISE_FP32) {
        static_cast<float*>(problem.out.data)[offset + column] = 0;
      } else {
        static_cast<std::uint16_t*>(problem.out.data)[offset + column] = 0;  // bf16, fp16
      }
    }
    if (lane == 0 && problem.lse.present()) {
      static_cast<float*>(problem.lse.data)[problem.lse.offset(batch, head, row)] =
          -math::Limits<float>::kInfinity;
    }
  }
}

// The part of warp `warp` of `warps`. Rows of packed queries without a sequence lie in gaps: gap b
// before sequence b, the last one after all of them. Dense queries have gap b after the rows that
// sequence b uses.
__device__ __forceinline__ void zero_unowned_rows(const problem::Problem& problem,
                                                  const SequenceLengths* lengths, std::int32_t warp,
                                                  std::int32_t warps) {
  if (!problem.varlen_q() || lengths == nullptr) return;
  const std::int32_t batch = static_cast<std::int32_t>(problem.batch);
  for (std::int32_t first = 0; first <= batch; first += 32) {
    const std::int32_t b = first + static_cast<std::int32_t>(threadIdx.x) % 32;
    std::int32_t begin = 0;
    std::int32_t end = 0;
    if (!problem.q_packed && b < batch) {
      begin = lengths[b].q_len;
      end = static_cast<std::int32_t>(problem.q_rows);
    } else if (problem.q_packed && b <= batch) {
      if (b > 0) begin = lengths[b - 1].q_start + lengths[b - 1].q_len;
      end = b < batch ? lengths[b].q_start : static_cast<std::int32_t>(problem.q_rows);
    }
    for (unsigned gaps = __ballot_sync(~0u, begin < end); gaps != 0; gaps &= gaps - 1) {
      const int lane = __ffs(static_cast<int>(gaps)) - 1;
      const std::int32_t gap_end = __shfl_sync(~0u, end, lane);
      for (std::int32_t row = __shfl_sync(~0u, begin, lane) + warp; row < gap_end; row += warps) {
        zero_row(problem, problem.q_packed ? 0 : first + lane, row);
      }
    }
  }
}

}  // namespace tilewise::cuda::sm90
