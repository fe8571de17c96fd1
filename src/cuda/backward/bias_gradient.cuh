// dBias. A block owns one tile of the bias and adds up dS of all sequences, heads, rows and keys
// that the tile is broadcast to, in a fixed order; then it writes the tile.
#pragma once

#include "cuda/backward/loaded_key_tile.cuh"
#include "cuda/host/sequences.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/tile/element.cuh"
#include "math/integer.h"

namespace tilewise::cuda::backward {

// A tile of the bias: extents of 1 are broadcast.
struct BiasTile {
  std::int32_t batch, head, row_tile, column_tile;
};

// The tile of the bias that a block owns.
__device__ __forceinline__ BiasTile bias_tile_of(const Problem& problem, std::int64_t index,
                                                 int q_tile, int k_tile) {
  const std::int64_t rows = math::ceil_div(problem.bias_shape[2], q_tile);
  const std::int64_t columns = math::ceil_div(problem.bias_shape[3], k_tile);
  const std::int64_t head = index / columns / rows;
  return {static_cast<std::int32_t>(head / problem.bias_shape[1]),
          static_cast<std::int32_t>(head % problem.bias_shape[1]),
          static_cast<std::int32_t>(index / columns % rows),
          static_cast<std::int32_t>(index % columns)};
}

// The indices [begin, end) of a dimension that an index of the bias stands for.
struct BroadcastRange {
  std::int32_t begin, end;

  __device__ __forceinline__ BroadcastRange(std::int64_t extent, std::int64_t full,
                                            std::int32_t index)
      : begin(extent == 1 ? 0 : index),
        end(extent == 1 ? static_cast<std::int32_t>(full) : index + 1) {}
};

// TileSums loads tiles of queries and keys and adds up their dS:
//   begin_head(head)               the first warp: sets the rows and the mask of a query head
//   fetch_keys()                   starts the copy of K and V
//   fetch_queries(q_tile)          starts the copy of Q, dO and the statistics
//   add_tile(q_tile, tile_class)   adds dS of a pair of tiles to the sums
//   store_sums()                   writes them to shared memory, (q_tile, kSumStride)
template <class TileSums>
class BiasGradient : public TileSums {
 public:
  static constexpr int kQTile = TileSums::kQTile;
  static constexpr int kKTile = TileSums::kKTile;
  using TileSums::TileSums;

  __device__ __forceinline__ void run(const BiasTile& bias) {
    const Problem& problem = parameters_.problem;
    const BroadcastRange batches(problem.bias_shape[0], problem.batch, bias.batch);
    const BroadcastRange heads(problem.bias_shape[1], problem.heads, bias.head);
    for (std::int32_t b = batches.begin; b < batches.end; ++b) {
      for (std::int32_t head = heads.begin; head < heads.end; ++head) add_head(bias, b, head);
    }
    store(bias);
  }

 private:
  using TileSums::mask_;
  using TileSums::parameters_;
  using TileSums::tile_;

  __device__ __forceinline__ void add_head(const BiasTile& bias, std::int32_t b,
                                           std::int32_t head) {
    const Problem& problem = parameters_.problem;
    const Sequence sequence = sequence_at(problem, parameters_.table, b);
    const BroadcastRange key_tiles(problem.bias_shape[3], math::ceil_div(sequence.k_len, kKTile),
                                   bias.column_tile);
    for (std::int32_t key_tile = key_tiles.begin; key_tile < key_tiles.end; ++key_tile) {
      __syncthreads();  // no warp reads the last tiles any more
      if (threadIdx.x == 0) {
        tile_.kv_head = head / static_cast<std::int32_t>(problem.group);
        tile_.first = key_tile * kKTile;
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
                                 math::ceil_div(sequence.q_len, kQTile), bias.row_tile);
    for (std::int32_t q_tile = q_tiles.begin; q_tile < q_tiles.end; ++q_tile) {
      if (!mask_.sees_keys(q_tile)) continue;
      const tile::TileClass tile_class = mask_.tile_class(q_tile);
      this->fetch_queries(q_tile);
      ptx::cp_async_wait<0>();
      __syncthreads();
      this->add_tile(q_tile, tile_class);
      __syncthreads();
    }
    ptx::cp_async_wait<0>();
  }

  // Sums over rows and keys if the bias is broadcast along them, and writes the tile.
  __device__ __forceinline__ void store(const BiasTile& bias) {
    const Problem& problem = parameters_.problem;
    __syncthreads();
    const float* const tile = this->store_sums();
    __syncthreads();
    const int rows = problem.bias_shape[2] == 1 ? 1 : kQTile;
    const int columns = problem.bias_shape[3] == 1 ? 1 : kKTile;
    for (int i = threadIdx.x; i < rows * columns; i += TileSums::kThreads) {
      const std::int64_t row = std::int64_t{bias.row_tile} * kQTile + i / columns;
      const std::int64_t column = std::int64_t{bias.column_tile} * kKTile + i % columns;
      if (row >= problem.bias_shape[2] || column >= problem.bias_shape[3]) continue;
      float sum = 0;
      for (int y = i / columns; y < kQTile; y += rows) {
        for (int x = i % columns; x < kKTile; x += columns)
          sum += tile[y * TileSums::kSumStride + x];
      }
      write_element(problem.dbias, problem.dbias.offset(bias.batch, bias.head, row, column), sum);
    }
  }
};

}  // namespace tilewise::cuda::backward
