// The end of a tile: rows are closed, written, and marked for the non_finite_pass path if the fast
// one could not do them.
#pragma once

#include "cuda/forward/sm90/shared.cuh"
#include "cuda/non_finite/recompute_rows.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/global_store.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/tile/element.cuh"
#include "cuda/tile/softmax.cuh"

namespace tilewise::cuda::sm90 {

// math::finalise() in float, of a state in units of log 2.
__device__ __forceinline__ math::Finalised<float> finalise(const math::SoftmaxState<float>& state,
                                                           float ln2) {
  const float minus_infinity = -math::Limits<float>::kInfinity;
  const bool none = state.max == minus_infinity;
  const float lse = __fmaf_rn(ptx::log2_approx(state.sum), ln2, state.max * ln2);
  return {none ? 0 : ptx::reciprocal_approx(state.sum), none ? minus_infinity : lse};
}

// The same with a sink, which joins as the state (sink, 1).
__device__ __forceinline__ math::Finalised<float> finalise(const math::SoftmaxState<float>& state,
                                                           float sink, float ln2) {
  const math::Merged<float> merged =
      math::merge({state.max, state.sum}, {sink / ln2, 1.0f}, math::ExponentUnit<float>(1.0f));
  return {merged.factor_a * ptx::reciprocal_approx(merged.state.sum),
          __fmaf_rn(ptx::log2_approx(merged.state.sum), ln2, merged.state.max * ln2)};
}

// A lane's places on the way out, the same in every tile of queries. Rows leave through the warp's
// panel in shared memory (tile/swizzle.h), 64 columns at a time.
struct LaneOffsets {
  std::int32_t row;   // the warp's first of a tile
  std::int64_t lse;   // bytes from a tile's first lse to that of the lane's first row
  std::int64_t out;   // and from its first row of out to the 16 bytes that the lane stores first
  std::uint32_t put;  // where stmatrix puts the row of this lane
  std::uint32_t get;  // the lane's first 16 bytes
};

// thread: of the warpgroup.
__device__ __forceinline__ LaneOffsets lane_offsets_of(const problem::Problem& problem,
                                                       int warpgroup, int thread,
                                                       std::uint32_t stage) {
  const int lane = thread % 32;
  const std::int32_t row = warpgroup * tile::kRows + thread / 32 * tile::kWarpRows;
  return {
      row, (row + tile::lane_row(lane, 0)) * problem.lse.row * 4,
      ((row + lane / 8) * problem.out.row + lane % 8 * 8) * 2,
      stage + tile::swizzled(lane % tile::kWarpRows, lane / tile::kWarpRows * tile::kChunkBytes),
      stage + tile::swizzled(lane / 8, lane % 8 * tile::kChunkBytes)};
}

// 64 columns of the warp's rows from shared memory to memory: eight lanes write 128 bytes of a row.
// non_finite: become something else than +-0 where one of the lane's rows has a number that is not
// finite. kAtOnce: times four rows in flight.
template <bool kFp16, int kAtOnce>
__device__ __forceinline__ void store_panel(std::uint32_t get, std::int32_t rows, bool inside,
                                            char* to, std::int64_t step,
                                            std::uint32_t (&non_finite)[kAtOnce]) {
  const int lane = threadIdx.x % 32;
#pragma unroll kAtOnce
  for (int i = 0; i < 4; ++i) {
    // Four rows further is another chunk of the swizzle, eight rows the same.
    const std::uint32_t at =
        i % 2 == 0 ? get : (get + 4 * tile::kPanelRowBytes) ^ 4 * tile::kChunkBytes;
    const uint4 chunk = ptx::ld_shared_v4(at + i / 2 * tile::kSwizzleBytes);
    const bool valid = lane / 8 + 4 * i < rows;
    if (inside && valid) ptx::st_global_v4(to, chunk);
    std::uint32_t& own = non_finite[i % kAtOnce];
    std::uint32_t sum = ptx::fma_x2<kFp16>(chunk.x, 0, own);
    sum = ptx::fma_x2<kFp16>(chunk.y, 0, sum);
    sum = ptx::fma_x2<kFp16>(chunk.z, 0, sum);
    sum = ptx::fma_x2<kFp16>(chunk.w, 0, sum);
    own = valid ? sum : own;
    to += step;
  }
}

// Writes the warp's rows, 16 bits wide, `rows` of them at most. Returns whether one of them has a
// number that is not finite, of those that this lane looked at.
template <KernelConfig kConfig, int kOut>
__device__ __forceinline__ bool store_rows_16_bytes(const float (&out)[kOut],
                                                    const float (&scale)[tile::kRowsPerLane],
                                                    const LaneOffsets& places, std::int32_t rows,
                                                    char* to, const Parameters& parameters) {
  const int lane = threadIdx.x % 32;
  // Beside so much of out and score_mod scores there are no registers for more.
  constexpr int kAtOnce = kConfig.score_mod && kOut > 64 ? 1 : 4;
  std::uint32_t non_finite[kAtOnce] = {};
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
      }
      ptx::stmatrix_x4(places.put ^ block * tile::kChunkBytes, pairs);
    }
    __syncwarp();
    const bool inside = panel * tile::kPanelColumns + lane % 8 * 8 < parameters.problem.value_dim;
    store_panel<kConfig.fp16, kAtOnce>(places.get, rows, inside, to + panel * tile::kPanelRowBytes,
                                       parameters.out_step, non_finite);
    __syncwarp();
  }
  std::uint32_t any = 0;
  for (const std::uint32_t own : non_finite) any |= own;
  return (any & 0x7FFF7FFFu) != 0;
}

// Leaves the warp's rows in its part of the place of Q. Returns whether one of the lane's numbers
// is not finite, of `rows` rows at most. put: where stmatrix puts the row of this lane. beside(i):
// something to be done beside 16 columns, from the i-th on of kOut / 8; returns 0. NOTE: as a part
// of the address: else ptxas 13.0 has all rows before all of that.
template <KernelConfig kConfig, int kOut, class Overlapped>
__device__ __forceinline__ bool stage_rows(const float (&out)[kOut],
                                           const float (&scale)[tile::kRowsPerLane],
                                           std::uint32_t put, std::int32_t rows,
                                           const Overlapped& overlapped) {
  std::uint32_t non_finite[4] = {};
#pragma unroll
  for (int part = 0; part < kOut / 8; ++part) {
    const int panel = part / 4;
    const int block = part % 4 * 2;  // of 8 columns
    const std::uint32_t zero = overlapped(part);
    std::uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = part * 8 + 2 * i;
      const int which = tile::register_row(r);
      pairs[i] = ptx::pack<kConfig.fp16>(out[r] * scale[which], out[r + 1] * scale[which]);
      non_finite[i] = ptx::fma_x2<kConfig.fp16>(pairs[i], 0, non_finite[i]);
    }
    const std::uint32_t of_panel = put + panel * tile::kRows * tile::kPanelRowBytes;
    ptx::stmatrix_x4((of_panel ^ block * tile::kChunkBytes) + zero, pairs);
  }
  std::uint32_t any = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    any |= tile::lane_row(threadIdx.x % 32, tile::register_row(2 * i)) < rows ? non_finite[i] : 0;
  return (any & 0x7FFF7FFFu) != 0;
}

// One number, for any dtype and alignment.
__device__ __forceinline__ void store_element(std::int32_t dtype, char* to, float x) {
  if (dtype == TILEWISE_FP32) {
    *reinterpret_cast<float*>(to) = x;
  } else if (dtype == TILEWISE_BF16) {
    math::store(x, reinterpret_cast<math::BFloat16*>(to));
  } else {
    math::store(x, reinterpret_cast<math::Float16*>(to));
  }
}

// The same as floats, 32 columns at a time and one number to a lane, for any dtype and alignment.
// to: the warp's first row.
template <int kOut>
__device__ __forceinline__ bool store_rows_scalar(const float (&out)[kOut],
                                                  const float (&scale)[tile::kRowsPerLane],
                                                  std::uint32_t stage, std::int32_t rows, char* to,
                                                  const Parameters& parameters) {
  constexpr int kColumns = 32;
  constexpr int kRegisters = kColumns / 2;
  const problem::View& view = parameters.problem.out;
  const int lane = threadIdx.x % 32;
  bool non_finite = false;
#pragma unroll
  for (int part = 0; part < kOut / kRegisters; ++part) {
#pragma unroll
    for (int r = 0; r < kRegisters; r += 2) {
      const int which = tile::register_row(r);
      const int column = tile::register_column(r) + tile::lane_column(lane);
      ptx::st_shared_v2(stage + (tile::lane_row(lane, which) * kColumns + column) * 4,
                        out[part * kRegisters + r] * scale[which],
                        out[part * kRegisters + r + 1] * scale[which]);
    }
    __syncwarp();
    const int column = part * kColumns + lane;
#pragma unroll 1
    for (int row = 0; row < tile::kWarpRows && row < rows; ++row) {
      if (column >= parameters.problem.value_dim) continue;
      const float x = ptx::ld_shared(stage + (row * kColumns + lane) * 4);
      non_finite |= !(x - x == 0);
      store_element(view.dtype, to + (row * view.row + column) * parameters.out_bytes, x);
    }
    __syncwarp();
  }
  return non_finite;
}

// What the sums of a lane's rows say, before the product that completes them has come.
struct FinalisedRows {
  float scale[tile::kRowsPerLane];  // of out
  bool recompute;                   // a row by the non_finite_pass path
  RowSum sums[tile::kRowsPerLane];  // of scale_rows()
};

// Of the sums of a lane's rows what out is waiting for; the rest is done by the carrier.
__device__ __forceinline__ FinalisedRows scale_rows(const Parameters& parameters,
                                                    const WorkTile& tile,
                                                    const tile::RowStates& states) {
  math::SoftmaxState<float> state[tile::kRowsPerLane];
  FinalisedRows finalised;
  finalised.recompute = false;
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which) {
    state[which] = states.row[which];
    state[which].sum = tile::quad_sum(state[which].sum);
    finalised.scale[which] = tile::anchor_rounding_of(state[which].max, parameters.scale_log2);
    state[which].max *= parameters.scale_log2;
    finalised.sums[which] = {state[which].max, state[which].sum};
  }
  float scale[tile::kRowsPerLane];
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which)
    scale[which] = finalise(state[which], parameters.ln2).scale;
  if (tile.sink != -math::Limits<float>::kInfinity) {
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which)
      scale[which] = finalise(state[which], tile.sink, parameters.ln2).scale;
  }
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which) finalised.scale[which] *= scale[which];
  return finalised;
}

// Whether a row of a sequence, of this sum, is left to the non_finite_pass path.
// A sum is 1 at least, or exponents had no room: scores beyond 2^30, or a row that took 0 for a
// maximum (tile::init_max_all_visible()). kKeeps: maxima were looked for only where rows may see
// their first key. A row without one that sees keys has begun with scores of -inf; what came behind
// them is not known.
template <bool kKeeps>
__device__ __forceinline__ bool needs_recompute(const WorkTile& tile, std::int32_t row, float max,
                                                float sum) {
  const bool none = max == -math::Limits<float>::kInfinity;
  if (!none) return sum < 0.5f;
  return kKeeps && tile.edges.begin(row) < tile.edges.end(row);
}

// Closes the rows of a warpgroup, and writes their lse: beside products, for whose end the shuffles
// and logarithms need not be waited for. Step by step for both rows: one after the other, each
// would wait for its own shuffles. NOTE: no branch before that of the sink, which few have: ptxas
// has all of it done between the first steps of the product that was started before.
template <bool kKeeps>
__device__ __forceinline__ FinalisedRows finalise_rows(const Parameters& parameters,
                                                       const WorkTile& tile,
                                                       const LaneOffsets& places,
                                                       const tile::RowStates& states) {
  const int lane = threadIdx.x % 32;
  const std::int32_t rows = tile.q_len - tile.row - places.row;
  const float ln2 = parameters.ln2;
  math::SoftmaxState<float> state[tile::kRowsPerLane];
  math::Finalised<float> row[tile::kRowsPerLane];
  FinalisedRows finalised;
  finalised.recompute = false;
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which) {
    state[which] = states.row[which];
    state[which].sum = tile::quad_sum(state[which].sum);
    const std::int32_t own = tile.row + places.row + tile::lane_row(lane, which);
    finalised.recompute |= needs_recompute<kKeeps>(tile, own, state[which].max, state[which].sum) &&
                           tile::lane_row(lane, which) < rows;
    finalised.scale[which] = tile::anchor_rounding_of(state[which].max, parameters.scale_log2);
    state[which].max *= parameters.scale_log2;
    row[which] = finalise(state[which], ln2);
  }
  if (tile.sink != -math::Limits<float>::kInfinity) {
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which)
      row[which] = finalise(state[which], tile.sink, ln2);
  }
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which)
    finalised.scale[which] *= row[which].scale;
  if (lane % tile::kLanesPerRow == 0 && tile.lse != nullptr) {
    char* const first = tile.lse + places.lse;
    if (tile::lane_row(lane, 0) < rows) ptx::st_global(first, row[0].lse);
    if (tile::lane_row(lane, 1) < rows) ptx::st_global(first + parameters.lse_step, row[1].lse);
  }
  return finalised;
}

// Writes the closed rows of a warpgroup. last_mark: of the block.
template <KernelConfig kConfig, int kOut>
__device__ __forceinline__ void write_rows(const Parameters& parameters, const WorkTile& tile,
                                           const LaneOffsets& places, const float (&out)[kOut],
                                           const FinalisedRows& finalised,
                                           unsigned long long& last_flagged) {
  const problem::Problem& problem = parameters.problem;
  const std::int32_t rows = tile.q_len - tile.row - places.row;
  bool any = finalised.recompute;
  if (parameters.vector_stores) {
    any |= store_rows_16_bytes<kConfig>(out, finalised.scale, places, rows, tile.out + places.out,
                                        parameters);
  } else {
    const std::uint32_t stage = places.get & ~(tile::kSwizzleBytes - 1u);
    any |= store_rows_scalar(out, finalised.scale, stage, rows,
                             tile.out + places.row * problem.out.row * parameters.out_bytes,
                             parameters);
  }
  if (__any_sync(~0u, any) && threadIdx.x % 32 == 0) {
    constexpr std::int64_t kWarps = kConfig.q_tile / tile::kWarpRows;
    // Divided here: the loops have no registers for it.
    const std::uint32_t row = ptx::opaque(static_cast<std::uint32_t>(places.row));
    flag_rows(parameters, tile.index * kWarps + row / tile::kWarpRows, last_flagged);
  }
}

}  // namespace tilewise::cuda::sm90
