// The epilogue of a query tile: rows are finalised and stored or staged. What the fast steps could
// not compute is reported (reports.cuh).
#pragma once

#include "cuda/forward/sm90/shared.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/global_store.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/tile/careful_softmax.cuh"
#include "cuda/tile/element.cuh"
#include "cuda/tile/finalise.cuh"
#include "cuda/tile/softmax.cuh"

namespace tilewise::cuda::sm90 {

// The offsets that a lane adds to a tile's addresses to store out, the same in every query tile.
// Rows pass through a panel of shared memory (tile/swizzle.h), 64 columns at a time.
struct LaneOffsets {
  std::int32_t row;   // the warp's first row of a tile
  std::int64_t lse;   // bytes from a tile's first lse to that of the lane's first row
  std::int64_t out;   // bytes from its first row of out to the 16 bytes that the lane stores first
  std::uint32_t put;  // address at which stmatrix stores the row of this lane
  std::uint32_t get;  // address of the lane's first 16 bytes
};

// thread: of the warpgroup. stage: of the warp, in shared memory.
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

// Whether one of the numbers that were accumulated into `check` (see check_finite()) is NaN or
// infinite.
__device__ __forceinline__ bool any_non_finite(std::uint32_t check) {
  return (check & 0x7FFF7FFFu) != 0;
}
// check + 0 * pair, in both halves: +-0 as long as all pairs are finite.
template <bool kFp16>
__device__ __forceinline__ std::uint32_t check_finite(std::uint32_t check, std::uint32_t pair) {
  return ptx::fma_x2<kFp16>(pair, 0, check);
}

// Stores 64 columns of the warp's rows from shared to global memory: eight lanes store 128 bytes of
// a row. checks: see check_finite(). kAtOnce: groups of four rows in flight.
template <bool kFp16, int kAtOnce>
__device__ __forceinline__ void store_panel(std::uint32_t get, std::int32_t rows, bool inside,
                                            char* to, std::int64_t step,
                                            std::uint32_t (&checks)[kAtOnce]) {
  const int lane = threadIdx.x % 32;
#pragma unroll kAtOnce
  for (int i = 0; i < 4; ++i) {
    // Four rows further is another chunk of the swizzle, eight rows the same.
    const std::uint32_t at =
        i % 2 == 0 ? get : (get + 4 * tile::kPanelRowBytes) ^ 4 * tile::kChunkBytes;
    const uint4 chunk = ptx::ld_shared_v4(at + i / 2 * tile::kSwizzleBytes);
    const bool valid = lane / 8 + 4 * i < rows;
    if (inside && valid) ptx::st_global_v4(to, chunk);
    std::uint32_t& own = checks[i % kAtOnce];
    std::uint32_t check = check_finite<kFp16>(own, chunk.x);
    check = check_finite<kFp16>(check, chunk.y);
    check = check_finite<kFp16>(check, chunk.z);
    check = check_finite<kFp16>(check, chunk.w);
    own = valid ? check : own;
    to += step;
  }
}

// Puts eight registers of out as 16 columns of the warp's rows into a panel. `block`: of 8 columns.
// Returns the packed pairs through `pairs`.
template <bool kFp16, int kOut>
__device__ __forceinline__ void pack_columns(const float (&out)[kOut],
                                             const float (&scale)[tile::kRowsPerLane], int first,
                                             std::uint32_t (&pairs)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = first + 2 * i;
    const int which = tile::register_row(r);
    pairs[i] = ptx::pack<kFp16>(out[r] * scale[which], out[r + 1] * scale[which]);
  }
}

// Stores the warp's rows 16 bytes at a time, `rows` of them at most. Returns whether a number that
// this lane looked at is not finite.
template <KernelConfig kConfig, int kOut>
__device__ __forceinline__ bool store_rows_vector(const float (&out)[kOut],
                                                  const float (&scale)[tile::kRowsPerLane],
                                                  const LaneOffsets& offsets, std::int32_t rows,
                                                  char* to, const Parameters& parameters) {
  const int lane = threadIdx.x % 32;
  // D 128 and more with a score mod leave no registers for more.
  constexpr int kAtOnce = kConfig.score_mod && kOut > 64 ? 1 : 4;
  std::uint32_t checks[kAtOnce] = {};
#pragma unroll
  for (int panel = 0; panel < kOut / 32; ++panel) {
#pragma unroll
    for (int block = 0; block < 8; block += 2) {  // of 8 columns
      std::uint32_t pairs[4];
      pack_columns<kConfig.fp16>(out, scale, panel * 32 + block * 4, pairs);
      ptx::stmatrix_x4(offsets.put ^ block * tile::kChunkBytes, pairs);
    }
    __syncwarp();
    const bool inside = panel * tile::kPanelColumns + lane % 8 * 8 < parameters.problem.value_dim;
    store_panel<kConfig.fp16, kAtOnce>(offsets.get, rows, inside, to + panel * tile::kPanelRowBytes,
                                       parameters.out_step, checks);
    __syncwarp();
  }
  std::uint32_t any = 0;
  for (const std::uint32_t own : checks) any |= own;
  return any_non_finite(any);
}

// Stages the warp's rows in shared memory. Returns whether one of the lane's numbers is not finite,
// of `rows` rows at most. put: address at which stmatrix stores the row of this lane.
// overlapped(i) does something else with the 16 columns from the i-th on, of kOut / 8, and returns
// 0. NOTE: the 0 is a part of the address: without it, ptxas 13.0 stages all rows first.
template <KernelConfig kConfig, int kOut, class Overlapped>
__device__ __forceinline__ bool stage_rows(const float (&out)[kOut],
                                           const float (&scale)[tile::kRowsPerLane],
                                           std::uint32_t put, std::int32_t rows,
                                           const Overlapped& overlapped) {
  std::uint32_t checks[4] = {};
#pragma unroll
  for (int part = 0; part < kOut / 8; ++part) {
    const int panel = part / 4;
    const int block = part % 4 * 2;  // of 8 columns
    const std::uint32_t zero = overlapped(part);
    std::uint32_t pairs[4];
    pack_columns<kConfig.fp16>(out, scale, part * 8, pairs);
#pragma unroll
    for (int i = 0; i < 4; ++i) checks[i] = check_finite<kConfig.fp16>(checks[i], pairs[i]);
    const std::uint32_t panel_put = put + panel * tile::kRows * tile::kPanelRowBytes;
    ptx::stmatrix_x4((panel_put ^ block * tile::kChunkBytes) + zero, pairs);
  }
  std::uint32_t any = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int which = tile::register_row(2 * i);
    // A row that has seen a NaN score has a scale of NaN, and is what it ought to be.
    const bool counts =
        tile::lane_row(threadIdx.x % 32, which) < rows && scale[which] == scale[which];
    any |= counts ? checks[i] : 0;
  }
  return any_non_finite(any);
}

// Stores a number of any floating type at any aligned address.
__device__ __forceinline__ void store_element(std::int32_t dtype, char* to, float x) {
  if (dtype == TILEWISE_FP32) {
    *reinterpret_cast<float*>(to) = x;
  } else if (dtype == TILEWISE_BF16) {
    math::store(x, reinterpret_cast<math::BFloat16*>(to));
  } else {
    math::store(x, reinterpret_cast<math::Float16*>(to));
  }
}

// Stores the warp's rows for any type and alignment of out: as floats through shared memory, 32
// columns at a time and one number a lane. to: the warp's first row. Returns whether a number that
// this lane looked at is not finite.
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

// A lane's rows after finalise, before the product that completes out is done.
struct FinalisedRows {
  float scale[tile::kRowsPerLane];  // of out
  bool failed;                      // scores of a row left the range of the fast steps
  RowSum sums[tile::kRowsPerLane];  // for an epilogue warp
};

// Finalises what out waits for; an epilogue warp does the rest.
__device__ __forceinline__ FinalisedRows finalise_scales(const Parameters& parameters,
                                                         const WorkTile& tile,
                                                         const tile::RowStates& states,
                                                         float shift) {
  math::SoftmaxState<float> state[tile::kRowsPerLane];
  FinalisedRows finalised;
  finalised.failed = false;
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which) {
    state[which] = states.row[which];
    state[which].sum = tile::quad_sum(state[which].sum);
    finalised.scale[which] = tile::anchor_rounding_of(state[which].max, parameters.scale_log2);
    state[which].max = __fmaf_rn(state[which].max, parameters.scale_log2, shift);
    finalised.sums[which] = {state[which].max, state[which].sum};
  }
  float scale[tile::kRowsPerLane];
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which)
    scale[which] = tile::finalise_approx(state[which], parameters.ln2).scale;
  if (tile.sink != -math::Limits<float>::kInfinity) {
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which)
      scale[which] = tile::finalise_approx(state[which], tile.sink, parameters.ln2).scale;
  }
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which) finalised.scale[which] *= scale[which];
  return finalised;
}

// Whether scores of a row left the range of the fast steps: they are huge
// (tile/careful_softmax.cuh), or, with a lazy max, which is taken only where rows may see their
// first key, those of the first key tile were all -inf although the row sees keys. A row with NaN
// has its result.
template <KernelConfig kConfig>
__device__ __forceinline__ bool scores_failed(const WorkTile& tile, std::int32_t row, float max,
                                              float sum) {
  const bool none = max == -math::Limits<float>::kInfinity;
  if (sum != sum) return false;
  if (!none) return tile::is_huge(max);
  // Kernels with a block mask look for rows without a maximum in each step.
  return kConfig.lazy_max && !kConfig.block_mask && tile.band.begin(row) < tile.band.end(row);
}

// Finalises the rows of a warpgroup and stores their lse, during products, so that nothing waits
// for the shuffles and logarithms. Step by step for both rows: one after the other, each would wait
// for its own shuffles. NOTE: no branch before that of the sink, which few problems have: ptxas
// places all of it between the first steps of the product that was issued before.
template <KernelConfig kConfig>
__device__ __forceinline__ FinalisedRows finalise_rows(const Parameters& parameters,
                                                       const WorkTile& tile,
                                                       const LaneOffsets& offsets,
                                                       const tile::RowStates& states, float shift) {
  const int lane = threadIdx.x % 32;
  const std::int32_t rows = tile.q_len - tile.row - offsets.row;
  const float ln2 = parameters.ln2;
  math::SoftmaxState<float> state[tile::kRowsPerLane];
  math::Finalised<float> row[tile::kRowsPerLane];
  FinalisedRows finalised;
  finalised.failed = false;
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which) {
    state[which] = states.row[which];
    state[which].sum = tile::quad_sum(state[which].sum);
    const std::int32_t own = tile.row + offsets.row + tile::lane_row(lane, which);
    finalised.scale[which] = tile::anchor_rounding_of(state[which].max, parameters.scale_log2);
    state[which].max = __fmaf_rn(state[which].max, parameters.scale_log2, shift);
    finalised.failed |= scores_failed<kConfig>(tile, own, state[which].max, state[which].sum) &&
                        tile::lane_row(lane, which) < rows;
    row[which] = tile::finalise_approx(state[which], ln2);
  }
  if (tile.sink != -math::Limits<float>::kInfinity) {
#pragma unroll
    for (int which = 0; which < tile::kRowsPerLane; ++which)
      row[which] = tile::finalise_approx(state[which], tile.sink, ln2);
  }
#pragma unroll
  for (int which = 0; which < tile::kRowsPerLane; ++which)
    finalised.scale[which] *= row[which].scale;
  if (lane % tile::kLanesPerRow == 0 && tile.lse != nullptr) {
    char* const first = tile.lse + offsets.lse;
    if (tile::lane_row(lane, 0) < rows) ptx::st_global(first, row[0].lse);
    if (tile::lane_row(lane, 1) < rows) ptx::st_global(first + parameters.lse_step, row[1].lse);
  }
  return finalised;
}

// Stores the finalised rows of a warpgroup. Returns whether a number that this lane looked at is
// not finite.
template <KernelConfig kConfig, int kOut>
__device__ __forceinline__ bool store_out(const Parameters& parameters, const WorkTile& tile,
                                          const LaneOffsets& offsets, const float (&out)[kOut],
                                          const FinalisedRows& finalised) {
  const problem::Problem& problem = parameters.problem;
  const std::int32_t rows = tile.q_len - tile.row - offsets.row;
  if (parameters.vector_stores) {
    return store_rows_vector<kConfig>(out, finalised.scale, offsets, rows, tile.out + offsets.out,
                                      parameters);
  }
  const std::uint32_t stage = offsets.get & ~(tile::kSwizzleBytes - 1u);
  return store_rows_scalar(out, finalised.scale, stage, rows,
                           tile.out + offsets.row * problem.out.row * parameters.out_bytes,
                           parameters);
}

}  // namespace tilewise::cuda::sm90
