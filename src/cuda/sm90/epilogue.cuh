// The end of a tile: rows are closed, written, and marked for the careful path if the fast one
// could not do them.
#pragma once

#include "cuda/element.cuh"
#include "cuda/sm90/shared.cuh"
#include "cuda/tile/softmax.cuh"

namespace tilewise::cuda::sm90 {

// math::finalise() in float, of a state in units of log 2. The sink joins as the state (sink, 1).
__device__ __forceinline__ math::Finalised<float> close(math::SoftmaxState<float> state, float sink,
                                                        float lse_unit) {
  const float minus_infinity = -math::Limits<float>::kInfinity;
  if (sink != minus_infinity) {
    const math::Merged<float> merged = math::merge({state.max, state.sum}, {sink / lse_unit, 1.0f},
                                                   math::ExponentUnit<float>(1.0f));
    return {merged.factor_a / merged.state.sum,
            __fmaf_rn(math::log2(merged.state.sum), lse_unit, merged.state.max * lse_unit)};
  }
  if (state.max == minus_infinity) return {0, minus_infinity};
  return {1 / state.sum, __fmaf_rn(math::log2(state.sum), lse_unit, state.max * lse_unit)};
}

// Of each 32 columns, the four lanes of a row hold two of every 8. They exchange pairs so that each
// lane has 8 columns in a row, 16 bytes: pair (block b, lane c) goes to lane b. pairs (4), by
// block; afterwards by column.
__device__ __forceinline__ void gather_row(std::uint32_t (&pairs)[4]) {
  const bool odd = threadIdx.x % 2 == 1;
  const bool high = threadIdx.x % 4 >= 2;
#pragma unroll
  for (int b = 0; b < 4; b += 2) {
    const std::uint32_t other = __shfl_xor_sync(~0u, odd ? pairs[b] : pairs[b + 1], 1);
    (odd ? pairs[b] : pairs[b + 1]) = other;
  }
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    const std::uint32_t other = __shfl_xor_sync(~0u, high ? pairs[b] : pairs[b + 2], 2);
    (high ? pairs[b] : pairs[b + 2]) = other;
  }
}

// Row number `which` of the lane, 16 bits wide, 16 bytes at a time. to: the row's first element.
template <KernelConfig kConfig, int kOut>
__device__ __forceinline__ void store_wide(const float (&out)[kOut], int which, float scale,
                                           bool inside, std::int64_t columns, std::uint16_t* to) {
#pragma unroll
  for (int block = 0; block < kOut / 4; block += 4) {
    std::uint32_t pairs[4];
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int r = (block + b) * 4 + 2 * which;
      pairs[b] = ptx::pack<kConfig.fp16>(out[r] * scale, out[r + 1] * scale);
    }
    gather_row(pairs);
    const std::int64_t column = 8 * (block + threadIdx.x % 4);
    if (!inside || column >= columns) continue;
    *reinterpret_cast<uint4*>(to + column) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

// The same one element at a time, for any dtype and alignment.
template <int kOut>
__device__ __forceinline__ void store_narrow(const float (&out)[kOut], int which, float scale,
                                             const problem::View& view, std::int64_t offset,
                                             std::int64_t columns) {
#pragma unroll
  for (int r = 0; r < kOut; ++r) {
    if (tile::register_row(r) != which) continue;
    const std::int64_t column = tile::register_column(r) + tile::lane_column(threadIdx.x % 32);
    if (column >= columns) continue;
    if (view.dtype == TILEWISE_FP32) {
      static_cast<float*>(view.data)[offset + column] = out[r] * scale;
    } else if (view.dtype == TILEWISE_BF16) {
      math::store(out[r] * scale, static_cast<math::BFloat16*>(view.data) + offset + column);
    } else {
      math::store(out[r] * scale, static_cast<math::Float16*>(view.data) + offset + column);
    }
  }
}

// Whether the careful path must look: something is not finite, or a row that saw keys has no
// weight.
template <int kOut>
__device__ __forceinline__ bool out_of_range(const float (&out)[kOut], int which, float scale,
                                             const math::SoftmaxState<float>& state) {
  float sum =
      state.sum == 0 && state.max != -math::Limits<float>::kInfinity ? HUGE_VALF : state.sum;
#pragma unroll
  for (int r = 0; r < kOut; ++r) {
    if (tile::register_row(r) == which) sum += fabsf(out[r] * scale);
  }
  return !(sum - sum == 0);
}

template <KernelConfig kConfig, int kOut>
__device__ void finish_tile(const Parameters& parameters, const Tile& tile, int warpgroup,
                            const float (&out)[kOut], tile::RowStates& states) {
  const problem::Problem& problem = parameters.problem;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x % 128 / 32;
  const std::int64_t batch = problem.q_packed ? 0 : tile.batch;
  float sink = -math::Limits<float>::kInfinity;
  if (problem.sink.present()) {
    sink = static_cast<const float*>(problem.sink.data)[problem.sink.offset(0, tile.head, 0)];
  }
  bool redo = false;
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which) {
    math::SoftmaxState<float> state = states.row[which];
    state.sum = tile::quad_sum(state.sum);
    const float rounding = tile::rounding_of(state.max, parameters.unit);
    state.max *= parameters.unit;
    math::Finalised<float> closed = close(state, sink, parameters.lse_unit);
    closed.scale *= rounding;
    const std::int32_t row =
        tile.row + warpgroup * tile::kRows + warp * tile::kWarpRows + tile::lane_row(lane, which);
    const bool inside = row < tile.q_len;
    const std::int64_t place = std::int64_t{tile.q_start} + row;
    redo |= inside && out_of_range(out, which, closed.scale, state);
    const std::int64_t offset = problem.out.offset(batch, tile.head, place);
    if (parameters.wide_stores) {
      store_wide<kConfig>(out, which, closed.scale, inside, problem.value_dim,
                          static_cast<std::uint16_t*>(problem.out.data) + offset);
    } else if (inside) {
      store_narrow(out, which, closed.scale, problem.out, offset, problem.value_dim);
    }
    if (inside && lane % tile::kLanesPerRow == 0 && problem.lse.present()) {
      static_cast<float*>(problem.lse.data)[problem.lse.offset(batch, tile.head, place)] =
          closed.lse;
    }
  }
  redo = __any_sync(~0u, redo);
  if (lane == 0) {
    constexpr std::int64_t kWarps = kConfig.q_tile / tile::kWarpRows;
    parameters.redo[tile.index * kWarps + warpgroup * 4 + warp] = redo ? 1 : 0;
  }
}

}  // namespace tilewise::cuda::sm90
