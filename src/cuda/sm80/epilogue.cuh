// The end of a tile: rows are closed, written, and marked where the fast path could not do them.
#pragma once

#include "cuda/ptx/global_store.cuh"
#include "cuda/sm80/parameters.h"
#include "cuda/sm80/warp_pair.cuh"
#include "cuda/sm80/work_tile.cuh"
#include "cuda/tile/finalise.cuh"
#include "cuda/tile/ldmatrix_tile.h"

namespace tilewise::cuda::sm80 {

template <KernelConfig kConfig>
class Epilogue {
 public:
  static constexpr int kParts = kConfig.row_parts;
  static constexpr bool kPaired = kConfig.paired;
  static constexpr int kColumns = kConfig.columns / kConfig.column_parts();  // of the warp
  static constexpr int kOut = kColumns / 2;
  using Layout = tile::LdmatrixTile<kConfig.columns>;

  // out and states: of the lane's rows
  __device__ __forceinline__ Epilogue(const Parameters& parameters, Shared<kConfig>& shared,
                                      float (&out)[kParts][kOut], tile::RowStates (&states)[kParts])
      : parameters_(parameters), shared_(shared), tile_(shared.tile), out_(out), states_(states) {}

  // Closes the sums; whether something of this lane is not finite, or a row that saw keys has no
  // prob. Without the scale, which may bring back into range what is not: the non_finite_pass pass
  // looks.
  __device__ __forceinline__ bool has_non_finite() {
    close_sums();
    float total = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (const math::SoftmaxState<float>& state : states_[part].row) {
        total +=
            state.sum == 0 && state.max != -math::Limits<float>::kInfinity ? HUGE_VALF : state.sum;
      }
      float chains[4] = {};  // an addition takes four cycles
#pragma unroll
      for (int r = 0; r < kOut; ++r) chains[r % 4] += fabsf(out_[part][r]);
      total += (chains[0] + chains[1]) + (chains[2] + chains[3]);
    }
    return !(total - total == 0);
  }

  __device__ __forceinline__ void finish() {
    float scales[kParts][tile::kRowsPerLane];
    close(scales);
    mark(scales);  // first: behind it nobody asks for out, whose registers the way out takes
    store(scales);
  }

  // out times the scales of its rows.
  __device__ __forceinline__ void store(const float (&scales)[kParts][tile::kRowsPerLane]) {
    if (parameters_.problem.out.dtype == TILEWISE_FP32) {
      store_floats(scales);
    } else {
      stage(scales);
      __syncwarp();
      if (parameters_.wide.out) {
        store_chunks();
      } else {
        store_elements();
      }
    }
  }

  // Rows for the repair kernel; there are none but after a non_finite_pass pass.
  __device__ __forceinline__ void mark(const float (&scales)[kParts][tile::kRowsPerLane]) {
    const int lane = threadIdx.x % 32;
    std::uint32_t marks[kParts] = {};
    const bool non_finite_pass = shared_.non_finite_pass;
    if (non_finite_pass) {
#pragma unroll
      for (int i = 0; i < kParts * tile::kRowsPerLane; ++i) {
        const int row = i / 2 * 16 + tile::lane_row(lane, i % 2);
        const bool non_finite = (shared_.seen[threadIdx.x] >> i & 1) != 0 ||
                                shared_.non_finite_row[first_row() + row] != 0 ||
                                tile::is_non_finite(out_[i / 2], i % 2, scales[i / 2][i % 2],
                                                    states_[i / 2].row[i % 2]);
        if (non_finite && is_inside(row)) marks[i / 2] |= 1u << row % 16;
      }
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) marks[part] = __reduce_or_sync(~0u, marks[part]);
    if constexpr (kPaired) {
      if (non_finite_pass) join(marks);
    }
    if (lane != 0 || column_part<kConfig>() != 0) return;
    // Not by first_row(), which would stay in a register from before the loops on.
    constexpr int kSharers = kConfig.column_parts();
    const std::int64_t rows = threadIdx.x / (32 * kSharers);
    const std::int64_t first =
        (tile_.index * std::int64_t{kConfig.warps / kSharers} + rows) * kParts;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      parameters_.marks[first + part] = static_cast<std::uint16_t>(marks[part]);
  }

 private:
  // The sums of the rows, over the lanes of a quad and the keys of a pair.
  __device__ __forceinline__ void close_sums() {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (math::SoftmaxState<float>& state : states_[part].row)
        state.sum = tile::quad_sum(state.sum);
    }
    if constexpr (kPaired) {
      const float rows[4] = {states_[0].row[0].sum, states_[0].row[1].sum, states_[1].row[0].sum,
                             states_[1].row[1].sum};
      give_rows(shared_, rows);
      meet_partner<kConfig>();
      const float4 others = take_rows(shared_);
      states_[0].row[0].sum += others.x;
      states_[0].row[1].sum += others.y;
      states_[1].row[0].sum += others.z;
      states_[1].row[1].sum += others.w;
    }
  }

  // Marks of a pair: what spoils a row may be among the keys or the columns of either warp.
  __device__ __forceinline__ void join(std::uint32_t (&marks)[kParts]) {
    // 16 bits are a float exactly.
    const float own[4] = {static_cast<float>(marks[0]), static_cast<float>(marks[1]), 0, 0};
    give_rows(shared_, own);
    meet_partner<kConfig>();
    const float4 others = take_rows(shared_);
    marks[0] |= static_cast<std::uint32_t>(others.x);
    marks[1] |= static_cast<std::uint32_t>(others.y);
  }

  // The warp's first row, of the tile. Wide rows have no register for it in the loops before, and
  // find it again.
  __device__ __forceinline__ static int first_row() {
    if constexpr (kParts == 2) return warp_row<kConfig>();
    return static_cast<int>(ptx::opaque(threadIdx.x) / 32) * 16;
  }

  __device__ __forceinline__ static int first_column() { return column_part<kConfig>() * kColumns; }

  // The lanes of a quad have the same rows: each closes one of them.
  __device__ __forceinline__ void close(float (&scales)[kParts][tile::kRowsPerLane]) {
    constexpr int kRows = kParts * tile::kRowsPerLane;
    static_assert(kRows <= tile::kLanesPerRow, "Every row of a lane has a lane of the quad.");
    const Problem& problem = parameters_.problem;
    const int lane = threadIdx.x % 32;
    const int own = lane % kRows;
    math::SoftmaxState<float> state = states_[0].row[0];
#pragma unroll
    for (int i = 1; i < kRows; ++i) {
      if (own == i) state = states_[i / 2].row[i % 2];
    }
    const float rounding = tile::anchor_rounding_of(state.max, parameters_.scale_log2);
    state.max *= parameters_.scale_log2;
    float sink = -math::Limits<float>::kInfinity;
    if (problem.sink.present()) {
      sink = static_cast<const float*>(problem.sink.data)[problem.sink.offset(0, tile_.head, 0)];
    }
    math::Finalised<float> closed = tile::finalise_row(state, sink);
    closed.scale *= rounding;
    if (kConfig.score_mod && problem.dropout_p > 0)
      closed.scale *= static_cast<float>(1 / (1 - problem.dropout_p));
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      scales[i / 2][i % 2] =
          __shfl_sync(~0u, closed.scale, lane / tile::kLanesPerRow * tile::kLanesPerRow + i);
    }
    const std::int32_t row = lane_row<kConfig>(tile_, own / 2) + own % 2 * 8;
    if (!problem.lse.present() || row > tile_.last || lane % tile::kLanesPerRow >= kRows ||
        column_part<kConfig>() != 0)
      return;
    const std::int64_t place = tile_.sequence.q_start + row;
    static_cast<float*>(problem.lse.data)[problem.lse.offset(out_batch(), tile_.head, place)] =
        closed.lse;
  }

  __device__ __forceinline__ std::int64_t out_batch() const {
    return parameters_.problem.q_packed ? 0 : tile_.sequence.batch;
  }

  // The first element of a row of the warp.
  __device__ __forceinline__ std::int64_t out_offset(int row) const {
    return parameters_.problem.out.offset(out_batch(), tile_.head,
                                          tile_.sequence.q_start + tile_.first + first_row() + row);
  }
  __device__ __forceinline__ bool is_inside(int row) const {
    return tile_.first + first_row() + row <= tile_.last;
  }

  __device__ __forceinline__ void store_floats(const float (&scales)[kParts][tile::kRowsPerLane]) {
    const problem::View& view = parameters_.problem.out;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kParts * tile::kRowsPerLane; ++i) {
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

  // out in 16 bits, where the warp's rows of Q were. The rows of a lane are a multiple of 8 apart:
  // their chunks are exchanged alike.
  __device__ __forceinline__ void stage(const float (&scales)[kParts][tile::kRowsPerLane]) {
    const int lane = threadIdx.x % 32;
    const std::uint32_t first =
        static_cast<std::uint32_t>(Layout::place(first_row() + tile::lane_row(lane, 0), 0) +
                                   first_column() * 2 + lane % tile::kLanesPerRow * 4);
#pragma unroll
    for (int chunk = 0; chunk < kColumns / 8; ++chunk) {
      const std::uint32_t place = tile::chunk_address<kConfig.columns>(first, chunk);
#pragma unroll
      for (int i = 0; i < kParts * tile::kRowsPerLane; ++i) {
        const float* const pair = &out_[i / 2][4 * chunk + i % 2 * 2];
        const float scale = scales[i / 2][i % 2];
        unsigned char* const to = shared_.q + place + i * 8 * Layout::kRowBytes;
        *reinterpret_cast<std::uint32_t*>(to) =
            ptx::pack<kConfig.fp16>(pair[0] * scale, pair[1] * scale);
      }
    }
  }

  // From there to out, 128 bytes of four rows at a time; everything is read before the first is
  // written.
  __device__ __forceinline__ void store_chunks() {
    constexpr int kSteps = kParts * 4;
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
        // Eight rows on, chunks are exchanged as before.
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

  __device__ __forceinline__ void store_elements() {
    const problem::View& view = parameters_.problem.out;
#pragma unroll 1
    for (int row = 0; row < kParts * 16 && is_inside(row); ++row) {
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
  const Tile& tile_;
  float (&out_)[kParts][kOut];
  tile::RowStates (&states_)[kParts];
};

}  // namespace tilewise::cuda::sm80
