// The epilogue of a tile: finalises its rows and stores them.
#pragma once

#include "cuda/ptx/global_store.cuh"
#include "cuda/sm80/parameters.h"
#include "cuda/sm80/warp_pair.cuh"
#include "cuda/sm80/work_tile.cuh"
#include "cuda/tile/exact_max.cuh"
#include "cuda/tile/finalise.cuh"
#include "cuda/tile/ldmatrix_tile.h"

namespace tilewise::cuda::sm80 {

template <KernelConfig kConfig>
class Epilogue {
 public:
  static constexpr int kRowBlocks = kConfig.row_blocks;
  static constexpr bool kPaired = kConfig.paired;
  static constexpr int kColumns = kConfig.columns / kConfig.pair_size();  // of the warp
  static constexpr int kOut = kColumns / 2;
  using Layout = tile::LdmatrixTile<kConfig.columns>;

  // `out` and `states` are those of the lane's rows.
  __device__ __forceinline__ Epilogue(const Parameters& parameters, Shared<kConfig>& shared,
                                      float (&out)[kRowBlocks][kOut],
                                      tile::RowStates (&states)[kRowBlocks])
      : parameters_(parameters), shared_(shared), tile_(shared.tile), out_(out), states_(states) {}

  // Reduces the row sums. Returns whether a row of this lane has a finite sum and a number of out
  // that is not finite: a non-finite V, or a sum that overflowed. A row whose sum is NaN is right.
  __device__ __forceinline__ bool has_non_finite_out() {
    reduce_sums();
    bool found = false;
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
      float partial[tile::kRowsPerLane][2] = {};  // an addition has a latency of four cycles
#pragma unroll
      for (int r = 0; r < kOut; ++r)
        partial[tile::register_row(r)][r % 2] += fabsf(out_[row_block][r]);
#pragma unroll
      for (int which = 0; which < tile::kRowsPerLane; ++which) {
        const float total = partial[which][0] + partial[which][1];
        found |= !(total < HUGE_VALF) && states_[row_block].row[which].sum < HUGE_VALF;
      }
    }
    return found;
  }

  // Adds up the row sums of the lanes of a quad and of the warps of a pair.
  __device__ __forceinline__ void reduce_sums() {
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
#pragma unroll
      for (math::SoftmaxState<float>& state : states_[row_block].row)
        state.sum = tile::quad_sum(state.sum);
    }
    if constexpr (kPaired) {
      const float rows[4] = {states_[0].row[0].sum, states_[0].row[1].sum, states_[1].row[0].sum,
                             states_[1].row[1].sum};
      publish_rows(shared_, rows);
      sync_pair<kConfig>();
      const float4 partner = read_partner_rows(shared_);
      states_[0].row[0].sum += partner.x;
      states_[0].row[1].sum += partner.y;
      states_[1].row[0].sum += partner.z;
      states_[1].row[1].sum += partner.w;
    }
  }

  // Comes after has_non_finite_out() or reduce_sums().
  __device__ __forceinline__ void finalise_and_store() {
    float scales[kRowBlocks][tile::kRowsPerLane];
    finalise_rows(scales);
    store(scales);
  }

  // Stores out times the scales of its rows.
  __device__ __forceinline__ void store(const float (&scales)[kRowBlocks][tile::kRowsPerLane]) {
    if (parameters_.problem.out.dtype == TILEWISE_FP32) {
      store_floats(scales);
    } else {
      stage_output(scales);
      __syncwarp();
      if (parameters_.aligned16.out) {
        store_chunks();
      } else {
        store_elements();
      }
    }
  }

 private:
  // The warp's first row in the tile. Kernels with one row block have no register for it in the
  // main loop, and compute it here.
  __device__ __forceinline__ static int first_row() {
    if constexpr (kRowBlocks == 2) return warp_row<kConfig>();
    return static_cast<int>(ptx::opaque(threadIdx.x) / 32) * 16;
  }

  __device__ __forceinline__ static int first_column() { return pair_index<kConfig>() * kColumns; }

  // Finalises the rows and writes their lse. The lanes of a quad have the same rows: each finalises
  // one of them.
  __device__ __forceinline__ void finalise_rows(float (&scales)[kRowBlocks][tile::kRowsPerLane]) {
    constexpr int kRows = kRowBlocks * tile::kRowsPerLane;
    static_assert(kRows <= tile::kLanesPerRow, "Every row of a lane has a lane of the quad.");
    const Problem& problem = parameters_.problem;
    const int lane = threadIdx.x % 32;
    const int own = lane % kRows;
    math::SoftmaxState<float> state = states_[0].row[0];
#pragma unroll
    for (int i = 1; i < kRows; ++i) {
      if (own == i) state = states_[i / 2].row[i % 2];
    }
    const float rounding = tile::exact_max_rounding_of(state.max, parameters_.scale_log2);
    // A row whose scores are all NaN has no max. Its sum makes it NaN.
    state.max = state.sum == state.sum ? state.max * parameters_.scale_log2 : 0;
    const float shift = kConfig.fp16 ? 1 : math::power_of_two(shared_.prob_shift);
    state.sum *= shift;
    float sink = -math::Limits<float>::kInfinity;
    if (problem.sink.present()) {
      sink = static_cast<const float*>(problem.sink.data)[problem.sink.offset(0, tile_.head, 0)];
    }
    math::Finalised<float> finalised = tile::finalise_row(state, sink);
    finalised.scale *= rounding * shift;
    if (kConfig.score_mod && problem.dropout_p > 0)
      finalised.scale *= static_cast<float>(1 / (1 - problem.dropout_p));
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      scales[i / 2][i % 2] =
          __shfl_sync(~0u, finalised.scale, lane / tile::kLanesPerRow * tile::kLanesPerRow + i);
    }
    const std::int32_t row = lane_row<kConfig>(tile_, own / 2) + own % 2 * 8;
    if (!problem.lse.present() || row > tile_.last || lane % tile::kLanesPerRow >= kRows ||
        pair_index<kConfig>() != 0)
      return;
    const std::int64_t q_row = tile_.sequence.q_start + row;
    static_cast<float*>(problem.lse.data)[problem.lse.offset(out_batch(), tile_.head, q_row)] =
        finalised.lse;
  }

  __device__ __forceinline__ std::int64_t out_batch() const {
    return parameters_.problem.q_packed ? 0 : tile_.sequence.batch;
  }

  // The offset of the first element of a row of the warp.
  __device__ __forceinline__ std::int64_t out_offset(int row) const {
    return parameters_.problem.out.offset(out_batch(), tile_.head,
                                          tile_.sequence.q_start + tile_.first + first_row() + row);
  }
  __device__ __forceinline__ bool is_inside(int row) const {
    return tile_.first + first_row() + row <= tile_.last;
  }

  __device__ __forceinline__ void store_floats(
      const float (&scales)[kRowBlocks][tile::kRowsPerLane]) {
    const problem::View& view = parameters_.problem.out;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kRowBlocks * tile::kRowsPerLane; ++i) {
      const int row = i / 2 * 16 + tile::lane_row(lane, i % 2);
      if (!is_inside(row)) continue;
      float* const to = static_cast<float*>(view.data) + out_offset(row);
#pragma unroll
      for (int r = 0; r < kOut; ++r) {
        const int column = first_column() + tile::register_column(r) + tile::lane_column(lane);
        if (tile::register_row(r) != i % 2 || column >= parameters_.problem.value_dim) continue;
        to[column] = out_[i / 2][r] * scales[i / 2][i % 2];
      }
    }
  }

  // Stages out, in 16 bits, in the shared memory of the warp's rows of Q. The rows of a lane are a
  // multiple of 8 apart, so that the swizzle of their chunks is the same.
  __device__ __forceinline__ void stage_output(
      const float (&scales)[kRowBlocks][tile::kRowsPerLane]) {
    const int lane = threadIdx.x % 32;
    const std::uint32_t first =
        static_cast<std::uint32_t>(Layout::place(first_row() + tile::lane_row(lane, 0), 0) +
                                   first_column() * 2 + lane % tile::kLanesPerRow * 4);
#pragma unroll
    for (int chunk = 0; chunk < kColumns / 8; ++chunk) {
      const std::uint32_t offset = tile::chunk_address<kConfig.columns>(first, chunk);
#pragma unroll
      for (int i = 0; i < kRowBlocks * tile::kRowsPerLane; ++i) {
        const float* const pair = &out_[i / 2][4 * chunk + i % 2 * 2];
        const float scale = scales[i / 2][i % 2];
        unsigned char* const to = shared_.q + offset + i * 8 * Layout::kRowBytes;
        *reinterpret_cast<std::uint32_t*>(to) =
            ptx::pack<kConfig.fp16>(pair[0] * scale, pair[1] * scale);
      }
    }
  }

  // Stores the staged output with 16-byte stores, 128 bytes of four rows at a time. All of it is
  // read before the first store.
  __device__ __forceinline__ void store_chunks() {
    constexpr int kSteps = kRowBlocks * 4;
    constexpr int kGroups = kColumns / 64;
    const problem::View& view = parameters_.problem.out;
    const int row = static_cast<int>(threadIdx.x) % 32 / 8;
    const int column = static_cast<int>(threadIdx.x) % 8 * 8;
    const unsigned char* const from =
        shared_.q + first_row() * Layout::kRowBytes + first_column() * 2;
    uint4 chunks[kSteps][kGroups];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        // The swizzle repeats after eight rows.
        chunks[step][group] =
            *reinterpret_cast<const uint4*>(from + Layout::place(row + step % 2 * 4, column / 8) +
                                            step / 2 * 8 * Layout::kRowBytes + group * 128);
      }
    }
    std::uint16_t* to =
        static_cast<std::uint16_t*>(view.data) + out_offset(row) + first_column() + column;
    const std::int32_t rows_left = tile_.last + 1 - tile_.first - first_row() - row;
    const std::int32_t columns_left =
        static_cast<std::int32_t>(parameters_.problem.value_dim) - first_column() - column;
#pragma unroll
    for (int step = 0; step < kSteps; ++step, to += 4 * view.row) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        if (step * 4 < rows_left && group * 64 < columns_left)
          ptx::st_global_v4(to + group * 64, chunks[step][group]);
      }
    }
  }

  // Stores the staged output element by element.
  __device__ __forceinline__ void store_elements() {
    const problem::View& view = parameters_.problem.out;
#pragma unroll 1
    for (int row = 0; row < kRowBlocks * 16 && is_inside(row); ++row) {
      std::uint16_t* const to = static_cast<std::uint16_t*>(view.data) + out_offset(row);
#pragma unroll 1
      for (int c = first_column() + threadIdx.x % 32;
           c < parameters_.problem.value_dim && c < first_column() + kColumns; c += 32) {
        to[c] = reinterpret_cast<const std::uint16_t*>(
            shared_.q + Layout::place(first_row() + row, c / 8))[c % 8];
      }
    }
  }

  const Parameters& parameters_;
  Shared<kConfig>& shared_;
  const WorkTile& tile_;
  float (&out_)[kRowBlocks][kOut];
  tile::RowStates (&states_)[kRowBlocks];
};

}  // namespace tilewise::cuda::sm80
