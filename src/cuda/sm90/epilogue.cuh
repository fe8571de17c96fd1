// The end of a tile: rows are closed, written, and marked for the careful path if the fast one
// could not do them.
#pragma once

#include "cuda/element.cuh"
#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/store.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/repair.cuh"
#include "cuda/sm90/shared.cuh"
#include "cuda/tile/softmax.cuh"

namespace tilewise::cuda::sm90 {

// math::finalise() in float, of a state in units of log 2.
__device__ __forceinline__ math::Finalised<float> close(const math::SoftmaxState<float>& state,
                                                        float lse_unit) {
  const float minus_infinity = -math::Limits<float>::kInfinity;
  if (state.max == minus_infinity) return {0, minus_infinity};
  return {ptx::reciprocal_approx(state.sum),
          __fmaf_rn(ptx::log2_approx(state.sum), lse_unit, state.max * lse_unit)};
}

// The same with a sink, which joins as the state (sink, 1).
__device__ __forceinline__ math::Finalised<float> close(const math::SoftmaxState<float>& state,
                                                        float sink, float lse_unit) {
  const math::Merged<float> merged =
      math::merge({state.max, state.sum}, {sink / lse_unit, 1.0f}, math::ExponentUnit<float>(1.0f));
  return {merged.factor_a * ptx::reciprocal_approx(merged.state.sum),
          __fmaf_rn(ptx::log2_approx(merged.state.sum), lse_unit, merged.state.max * lse_unit)};
}

// The rows of a warp, [first, end) of a sequence at most.
struct WarpRows {
  std::int32_t first;
  std::int32_t end;
  std::int64_t stride;  // between rows, in elements
  std::int64_t columns;
};

// 64 columns of the warp's rows from shared memory (tile/swizzle.h) to memory: eight lanes write
// 128 bytes of a row. to: the place of this lane in its first row. kAtOnce: times four rows in
// flight.
template <int kAtOnce>
__device__ __forceinline__ void store_panel(std::uint32_t stage, const WarpRows& rows, int panel,
                                            std::uint16_t* to) {
  const int lane = threadIdx.x % 32;
#pragma unroll kAtOnce
  for (int row = lane / 8; row < tile::kWarpRows; row += 4) {
    const uint4 chunk = ptx::load_chunk(stage + tile::swizzled(row, lane % 8 * tile::kChunkBytes));
    if (rows.first + row < rows.end && panel * tile::kPanelColumns + lane % 8 * 8 < rows.columns)
      ptx::store_chunk(to + panel * tile::kPanelColumns, chunk);
    to += 4 * rows.stride;
  }
}

// Writes the warp's rows, 16 bits wide, 64 columns at a time through its part of shared memory. to:
// the first row. bad (2): becomes something else than +-0 where a number is not finite.
template <KernelConfig kConfig, int kOut>
__device__ __forceinline__ void store_wide(const float (&out)[kOut],
                                           const float (&scale)[tile::kRowsPerLane],
                                           std::uint32_t stage, const WarpRows& rows,
                                           std::uint16_t* to,
                                           std::uint32_t (&bad)[tile::kRowsPerLane]) {
  const int lane = threadIdx.x % 32;
  const int row = lane % tile::kWarpRows;  // whose address this lane gives to stmatrix
  to += lane / 8 * rows.stride + lane % 8 * 8;
  // As if it were not known before: addresses in registers all along would be too many beside so
  // much of out (D 256 with general scores spills).
  std::uint32_t panel_stage[] = {stage};
  if constexpr (kOut > 64) ptx::settle(panel_stage);
#pragma unroll
  for (int panel = 0; panel < kOut / 32; ++panel) {
#pragma unroll
    for (int block = 0; block < 8; block += 2) {  // of 8 columns
      std::uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = panel * 32 + block * 4 + 2 * i;
        const int which = tile::register_row(r);
        pairs[i] = ptx::pack<kConfig.fp16>(out[r] * scale[which], out[r + 1] * scale[which]);
        bad[which] = ptx::multiply_add_pair<kConfig.fp16>(pairs[i], 0, bad[which]);
      }
      const int byte = (block + lane / tile::kWarpRows) * tile::kChunkBytes;
      ptx::store_matrices(panel_stage[0] + tile::swizzled(row, byte), pairs);
    }
    __syncwarp();
    store_panel<kOut <= 64 ? 4 : 1>(panel_stage[0], rows, panel, to);
    __syncwarp();
  }
}

// One number, for any dtype and alignment.
__device__ __forceinline__ void store_number(const problem::View& view, std::int64_t offset,
                                             float x) {
  if (view.dtype == TILEWISE_FP32) {
    static_cast<float*>(view.data)[offset] = x;
  } else if (view.dtype == TILEWISE_BF16) {
    math::store(x, static_cast<math::BFloat16*>(view.data) + offset);
  } else {
    math::store(x, static_cast<math::Float16*>(view.data) + offset);
  }
}

// The same as floats, 32 columns at a time and one number to a lane, for any dtype and alignment.
// Returns whether this lane met a number that is not finite. offset: of the first row.
template <int kOut>
__device__ __forceinline__ bool store_narrow(const float (&out)[kOut],
                                             const float (&scale)[tile::kRowsPerLane],
                                             std::uint32_t stage, const WarpRows& rows,
                                             const problem::View& view, std::int64_t offset) {
  constexpr int kColumns = 32;
  constexpr int kRegisters = kColumns / 2;
  const int lane = threadIdx.x % 32;
  bool bad = false;
#pragma unroll
  for (int part = 0; part < kOut / kRegisters; ++part) {
#pragma unroll
    for (int r = 0; r < kRegisters; r += 2) {
      const int which = tile::register_row(r);
      const int column = tile::register_column(r) + tile::lane_column(lane);
      ptx::store_pair(stage + (tile::lane_row(lane, which) * kColumns + column) * 4,
                      out[part * kRegisters + r] * scale[which],
                      out[part * kRegisters + r + 1] * scale[which]);
    }
    __syncwarp();
    const int column = part * kColumns + lane;
#pragma unroll 1
    for (int row = 0; row < tile::kWarpRows && rows.first + row < rows.end; ++row) {
      if (column >= rows.columns) continue;
      const float x = ptx::load_float(stage + (row * kColumns + lane) * 4);
      bad |= !(x - x == 0);
      store_number(view, offset + row * rows.stride + column, x);
    }
    __syncwarp();
  }
  return bad;
}

// Closes the rows of a warpgroup. stage: this warp's panel in shared memory. last_mark: of the
// block.
template <KernelConfig kConfig, int kOut>
__device__ __forceinline__ void finish_tile(const Parameters& parameters, const Tile& tile,
                                            int warpgroup, std::uint32_t stage,
                                            const float (&out)[kOut], const tile::RowStates& states,
                                            unsigned long long& last_mark) {
  const problem::Problem& problem = parameters.problem;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x % 128 / 32;
  const std::int32_t inside = warpgroup * tile::kRows + warp * tile::kWarpRows;  // of the tile
  const std::int32_t first = tile.row + inside;
  // Step by step for both rows: one after the other, each would wait for its own shuffles.
  math::SoftmaxState<float> state[tile::kRowsPerLane];
  float scale[tile::kRowsPerLane];
  float lse[tile::kRowsPerLane];
  bool redo[tile::kRowsPerLane];
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which) {
    state[which] = states.row[which];
    state[which].sum = tile::quad_sum(state[which].sum);
    redo[which] = state[which].sum == 0 && state[which].max != -math::Limits<float>::kInfinity;
    scale[which] = tile::rounding_of(state[which].max, parameters.unit);
    state[which].max *= parameters.unit;
  }
  const auto close_rows = [&](auto close_row) {
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      const math::Finalised<float> closed = close_row(state[which]);
      scale[which] *= closed.scale;
      lse[which] = closed.lse;
    }
  };
  const float lse_unit = parameters.lse_unit;
  if (tile.sink == -math::Limits<float>::kInfinity) {
    close_rows([&](const auto& own) { return close(own, lse_unit); });
  } else {
    close_rows([&](const auto& own) { return close(own, tile.sink, lse_unit); });
  }
  if (lane % tile::kLanesPerRow == 0 && problem.lse.present()) {
    float* const to = static_cast<float*>(problem.lse.data) + tile.lse;
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which) {
      const int row = tile::lane_row(lane, which);
      if (first + row < tile.q_len) to[(inside + row) * problem.lse.row] = lse[which];
    }
  }
  const std::int64_t offset = tile.out + inside * problem.out.row;
  const WarpRows rows = {first, tile.q_len, problem.out.row, problem.value_dim};
  bool any = false;
  if (parameters.wide_stores) {
    std::uint32_t bad[tile::kRowsPerLane] = {0, 0};
    store_wide<kConfig>(out, scale, stage, rows,
                        static_cast<std::uint16_t*>(problem.out.data) + offset, bad);
    for (int which = 0; which < tile::kRowsPerLane; ++which)
      redo[which] |= (bad[which] & 0x7FFF7FFFu) != 0;
  } else {
    any = store_narrow(out, scale, stage, rows, problem.out, offset);
  }
  for (int which = 0; which < tile::kRowsPerLane; ++which)
    any |= redo[which] && first + tile::lane_row(lane, which) < tile.q_len;
  if (__any_sync(~0u, any) && lane == 0) {
    constexpr std::int64_t kWarps = kConfig.q_tile / tile::kWarpRows;
    mark(parameters, tile.index * kWarps + warpgroup * 4 + warp, last_mark);
  }
}

}  // namespace tilewise::cuda::sm90
