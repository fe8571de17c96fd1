// dBias for Ampere and later. A block owns one tile of the bias and adds up dS of all sequences,
// heads, rows and keys that the tile is broadcast to, in a fixed order; then it writes the tile.
#pragma once

#include "cuda/backward/sm80/kernel.h"
#include "cuda/backward/sm80/score_gradient.cuh"
#include "cuda/host/launch.cuh"
#include "cuda/tile/element.cuh"

namespace tilewise::cuda::backward::sm80 {

// A tile of the bias: extents of 1 are broadcast.
struct BiasTile {
  std::int32_t batch, head, row_tile, column_tile;
};

// The indices [begin, end) of a dimension that an index of the bias stands for.
struct BroadcastRange {
  std::int32_t begin, end;

  __device__ __forceinline__ BroadcastRange(std::int64_t extent, std::int64_t full,
                                            std::int32_t index)
      : begin(extent == 1 ? 0 : index),
        end(extent == 1 ? static_cast<std::int32_t>(full) : index + 1) {}
};

template <KernelConfig kConfig>
class BiasGradient : public ScoreGradient<kConfig, true> {
 public:
  using Base = ScoreGradient<kConfig, true>;
  using Scores = typename Base::Scores;
  static_assert(kConfig.score_mod, "A bias is a score mod.");
  static_assert(2 * kConfig.score_bytes() == kConfig.q_tile * kConfig.k_tile * 4,
                "P and dS leave room for the sums of the tile.");

  __device__ __forceinline__ BiasGradient(const Parameters& parameters, Shared<kConfig>& shared)
      : Base(parameters, shared) {}

  __device__ __forceinline__ void run(const BiasTile& bias) {
    const Problem& problem = parameters_.problem;
    Scores::clear(sums_);
    const BroadcastRange batches(problem.bias_shape[0], problem.batch, bias.batch);
    const BroadcastRange heads(problem.bias_shape[1], problem.heads, bias.head);
    for (std::int32_t b = batches.begin; b < batches.end; ++b) {
      for (std::int32_t head = heads.begin; head < heads.end; ++head) add_head(bias, b, head);
    }
    store(bias);
  }

 private:
  using Base::mask_;
  using Base::parameters_;
  using Base::shared_;
  using Base::tile_;

  __device__ __forceinline__ void add_head(const BiasTile& bias, std::int32_t b,
                                           std::int32_t head) {
    const Problem& problem = parameters_.problem;
    const Sequence sequence = sequence_at(problem, parameters_.table, b);
    const BroadcastRange key_tiles(
        problem.bias_shape[3], math::ceil_div(sequence.k_len, kConfig.k_tile), bias.column_tile);
    for (std::int32_t key_tile = key_tiles.begin; key_tile < key_tiles.end; ++key_tile) {
      __syncthreads();  // no warp reads the last tiles any more
      if (threadIdx.x == 0) {
        tile_.kv_head = head / static_cast<std::int32_t>(problem.group);
        tile_.first = key_tile * kConfig.k_tile;
        tile_.sequence = sequence;
        set_key_rows(parameters_, tile_);
      }
      __syncthreads();
      if (threadIdx.x < 32) this->begin_head(head);
      __syncthreads();
      this->fetch_keys();
      add_queries(bias, sequence);
    }
  }

  __device__ __forceinline__ void add_queries(const BiasTile& bias, const Sequence& sequence) {
    const BroadcastRange q_tiles(parameters_.problem.bias_shape[2],
                                 math::ceil_div(sequence.q_len, kConfig.q_tile), bias.row_tile);
    for (std::int32_t q_tile = q_tiles.begin; q_tile < q_tiles.end; ++q_tile) {
      if (!mask_.sees_keys(q_tile)) continue;
      const tile::TileClass tile_class = mask_.tile_class(q_tile);
      this->fetch_queries(q_tile, 0);
      ptx::cp_async_wait<0>();
      __syncthreads();
      add_tile(q_tile, tile_class);
      __syncthreads();
    }
    ptx::cp_async_wait<0>();
  }

  __device__ __forceinline__ void add_tile(std::int32_t q_tile, tile::TileClass tile_class) {
    typename Base::ScoreFactors factors;
    typename Scores::Fragments probs, gradients;
    this->multiply_qk(0, probs);
    this->multiply_dov(0, gradients);
    this->probs(q_tile, 0, tile_class, probs, factors);
    this->gradients(0, tile_class, probs, factors, gradients);
#pragma unroll
    for (int row_block = 0; row_block < Scores::kRowBlocks; ++row_block) {
#pragma unroll
      for (int r = 0; r < Scores::kCount; ++r) sums_[row_block][r] += gradients[row_block][r];
    }
  }

  // Sums over rows and keys if the bias is broadcast along them, and writes the tile.
  __device__ __forceinline__ void store(const BiasTile& bias) {
    const Problem& problem = parameters_.problem;
    float* const tile = reinterpret_cast<float*>(shared_.probs);  // (q_tile, k_tile)
    const int lane = static_cast<int>(threadIdx.x) % 32;
    __syncthreads();
#pragma unroll
    for (int row_block = 0; row_block < Scores::kRowBlocks; ++row_block) {
#pragma unroll
      for (int r = 0; r < Scores::kCount; ++r) {
        const int row =
            Scores::row() + 16 * row_block + tile::lane_row(lane, tile::register_row(r));
        const int column = Scores::column() + tile::register_column(r) + tile::lane_column(lane);
        tile[row * kConfig.k_tile + column] = sums_[row_block][r];
      }
    }
    __syncthreads();
    const int rows = problem.bias_shape[2] == 1 ? 1 : kConfig.q_tile;
    const int columns = problem.bias_shape[3] == 1 ? 1 : kConfig.k_tile;
    for (int i = threadIdx.x; i < rows * columns; i += kConfig.threads()) {
      const std::int64_t row = std::int64_t{bias.row_tile} * kConfig.q_tile + i / columns;
      const std::int64_t column = std::int64_t{bias.column_tile} * kConfig.k_tile + i % columns;
      if (row >= problem.bias_shape[2] || column >= problem.bias_shape[3]) continue;
      float sum = 0;
      for (int y = i / columns; y < kConfig.q_tile; y += rows) {
        for (int x = i % columns; x < kConfig.k_tile; x += columns)
          sum += tile[y * kConfig.k_tile + x];
      }
      write_element(problem.dbias, problem.dbias.offset(bias.batch, bias.head, row, column), sum);
    }
  }

  typename Scores::Fragments sums_;
};

// The tile of the bias that a block owns.
template <KernelConfig kConfig>
__device__ __forceinline__ BiasTile bias_tile_of(const Problem& problem, std::int64_t index) {
  const std::int64_t rows = math::ceil_div(problem.bias_shape[2], kConfig.q_tile);
  const std::int64_t columns = math::ceil_div(problem.bias_shape[3], kConfig.k_tile);
  const std::int64_t head = index / columns / rows;
  return {static_cast<std::int32_t>(head / problem.bias_shape[1]),
          static_cast<std::int32_t>(head % problem.bias_shape[1]),
          static_cast<std::int32_t>(index / columns % rows),
          static_cast<std::int32_t>(index % columns)};
}

template <int kRow, bool kFp16>
__global__ void __launch_bounds__(kKernels[kRow].config(kFp16).threads(),
                                  kKernels[kRow].config(kFp16).blocks)
    bias_gradient_kernel(const __grid_constant__ Parameters parameters) {
  constexpr KernelConfig kConfig = kKernels[kRow].config(kFp16);
  Shared<kConfig>& shared = *reinterpret_cast<Shared<kConfig>*>(dynamic_shared());
  BiasGradient<kConfig>(parameters, shared)
      .run(bias_tile_of<kConfig>(parameters.problem, std::int64_t{blockIdx.x}));
}

}  // namespace tilewise::cuda::backward::sm80
